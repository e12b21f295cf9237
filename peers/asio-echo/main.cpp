// TCP echo on Asio without Boost, on its epoll reactor, based on the asynchronous echo server of Asio's examples: one
// io_context with one thread per core, each with its own listener.

#include <asio.hpp>

#include <chrono>
#include <cstdio>
#include <deque>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "flags.h"

using asio::ip::tcp;

class Connection : public std::enable_shared_from_this<Connection> {
public:
    Connection(tcp::socket socket, std::size_t buffer_bytes) : socket_(std::move(socket)), buffer_(buffer_bytes) {}

    void start() {
        std::error_code error;
        socket_.set_option(tcp::no_delay(true), error);
        if (error) {
            report(error);
        } else {
            receive();
        }
    }

private:
    void receive() {
        socket_.async_read_some(asio::buffer(buffer_),
                                [self = shared_from_this()](std::error_code error, std::size_t count) {
                                    if (!error) {
                                        self->send(count);
                                    } else if (error != asio::error::eof) {
                                        report(error);
                                    }
                                });
    }

    void send(std::size_t count) {
        asio::async_write(socket_, asio::buffer(buffer_.data(), count),
                          [self = shared_from_this()](std::error_code error, std::size_t) {
                              if (!error) {
                                  self->receive();
                              } else {
                                  report(error);
                              }
                          });
    }

    static void report(std::error_code error) {
        std::fprintf(stderr, "connection: %s\n", error.message().c_str());
    }

    tcp::socket socket_;
    std::vector<char> buffer_;
};

class Server {
public:
    // With a concurrency hint of 1, Asio omits most of its locks.
    explicit Server(peer_flags &flags)
        : flags_(flags), context_(1), acceptor_(context_, tcp::v4(), peer_bound_socket(&flags)), retry_(context_) {
        acceptor_.listen(PEER_BACKLOG);
        accept();
    }

    void run() { context_.run(); }

private:
    void accept() {
        acceptor_.async_accept([this](std::error_code error, tcp::socket socket) {
            if (!error) {
                std::make_shared<Connection>(std::move(socket), flags_.buffer_bytes)->start();
                accept();
                return;
            }
            std::fprintf(stderr, "accept: %s\n", error.message().c_str());
            retry_.expires_after(std::chrono::milliseconds(PEER_ACCEPT_RETRY_MS));
            retry_.async_wait([this](std::error_code) { accept(); });
        });
    }

    const peer_flags &flags_;
    asio::io_context context_;
    tcp::acceptor acceptor_;
    asio::steady_timer retry_;
};

int main(int argc, char **argv) {
    peer_flags flags = peer_flags_from_arguments(argc, argv, 4096);
    try {
        std::deque<Server> servers;
        for (std::size_t index = 0; index < flags.threads; index++) {
            servers.emplace_back(flags);
        }
        std::vector<std::thread> threads;
        for (std::size_t index = 1; index < flags.threads; index++) {
            peer_pin(&flags, index); // the thread inherits the affinity
            threads.emplace_back([&servers, index] { servers[index].run(); });
        }
        peer_pin(&flags, 0);
        peer_announce_ready(&flags, "driver=epoll");
        servers.front().run();
    } catch (const std::exception &error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
}
