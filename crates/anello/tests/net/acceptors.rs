//! Accepting concurrently: several tasks use one listener, and members of a group join and leave.

use std::cell::Cell;
use std::io::Read;
use std::net::SocketAddr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::SocketAddr as UnixAddr;
use std::rc::Rc;
use std::thread;
use std::time::Duration;

use anello::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use anello::server::{GroupMember, ListenerGroup, PendingConnections};
use anello::time::{sleep, timeout};
use anello::{spawn, yield_now};

use crate::common::*;

async fn until(is_true: impl Fn() -> bool) {
    while !is_true() {
        sleep(Duration::from_millis(1)).await;
    }
}

/// Connects three clients, and waits until all of them have been accepted.
async fn connect_three(address: SocketAddr, accepted: &Cell<usize>) -> Vec<TcpStream> {
    yield_now().await;
    let mut clients = Vec::new();
    for _ in 0..3 {
        clients.push(TcpStream::connect(address).await.unwrap());
    }
    until(|| accepted.get() == 3).await;
    clients
}

#[test]
fn several_tasks_accept_from_one_listener() {
    on_both_drivers(|setup| {
        setup.run(async {
            let listener = Rc::new(TcpListener::bind(ANY_PORT).unwrap());
            let address = listener.local_addr().unwrap();
            let accepted = Rc::new(Cell::new(0));
            for _ in 0..3 {
                let (listener, accepted) = (Rc::clone(&listener), Rc::clone(&accepted));
                spawn(async move {
                    let mut stream = listener.accept().await.unwrap();
                    accepted.set(accepted.get() + 1);
                    // Serves each connection for a while.
                    stream.recv().await.ok();
                })
                .detach();
            }
            let _clients = connect_three(address, &accepted).await;
        });
    });
}

#[test]
fn waiting_tasks_accept_while_other_tasks_cancel() {
    on_both_drivers(|setup| {
        setup.run(async {
            let listener = Rc::new(TcpListener::bind(ANY_PORT).unwrap());
            let address = listener.local_addr().unwrap();
            let accepted = Rc::new(Cell::new(0));
            let tasks: Vec<_> = (0..20)
                .map(|number| {
                    let (listener, accepted) = (Rc::clone(&listener), Rc::clone(&accepted));
                    spawn(async move {
                        let mut rounds = 0;
                        loop {
                            rounds += 1;
                            // Half of the tasks cancel their call to `accept` from time to time.
                            let limit = if number % 2 == 0 {
                                Duration::from_millis(1 + (rounds * 7 + number) % 5)
                            } else {
                                hang_timeout()
                            };
                            if let Ok(stream) = timeout(limit, listener.accept()).await {
                                drop(stream.unwrap());
                                accepted.set(accepted.get() + 1);
                            }
                        }
                    })
                })
                .collect();
            for round in 0..300 {
                if round % 50 == 49 {
                    tasks[round / 15].abort();
                }
                let mut stream = TcpStream::connect(address).await.unwrap();
                assert!(stream.recv().await.unwrap().is_none());
            }
            assert_eq!(accepted.get(), 300);
        });
    });
}

#[test]
fn several_tasks_accept_from_one_member() {
    on_both_drivers(|setup| {
        setup.run(async {
            let socket = std::net::TcpListener::bind(ANY_PORT).unwrap();
            let address = socket.local_addr().unwrap();
            let group = ListenerGroup::<TcpListener>::new(vec![socket], 1);
            let member = Rc::new(group.join(0));
            let ended = Rc::new(Cell::new(0));
            let accepted = Rc::new(Cell::new(0));
            for _ in 0..3 {
                let (member, accepted, ended) = (Rc::clone(&member), Rc::clone(&accepted), Rc::clone(&ended));
                spawn(async move {
                    let mut kept = Vec::new();
                    while let Some(stream) = member.accept().await.unwrap() {
                        accepted.set(accepted.get() + 1);
                        kept.push(stream);
                    }
                    ended.set(ended.get() + 1);
                })
                .detach();
            }
            let _clients = connect_three(address, &accepted).await;
            group.close(PendingConnections::Serve);
            until(|| ended.get() == 3).await;
        });
    });
}

#[test]
fn abandoned_accepts_do_not_take_the_wake_up_of_others() {
    on_every_driver_and_sim(|setup| {
        for is_kept in [false, true] {
            setup.run(async {
                let listener = Rc::new(TcpListener::bind(ANY_PORT).unwrap());
                let address = listener.local_addr().unwrap();
                let _kept = abandon(listener.accept(), is_kept);
                let accept = |listener: Rc<TcpListener>| async move { listener.accept().await.unwrap() };
                let tasks = [(); 3].map(|()| spawn(accept(Rc::clone(&listener))));
                yield_now().await;
                for task in tasks {
                    let _client = TcpStream::connect(address).await.unwrap();
                    task.await.unwrap();
                }
            });
        }
    });
}

#[test]
fn abandoned_accepts_of_a_member_do_not_take_the_wake_up_of_others() {
    on_each(group_setups(), |setup| {
        for is_kept in [false, true] {
            setup.run(async {
                let group = ListenerGroup::<TcpListener>::bind(ANY_PORT.parse().unwrap(), 1).unwrap();
                let address = group.sockets().unwrap()[0].local_addr().unwrap();
                let member = Rc::new(group.join(0));
                let _kept = abandon(member.accept(), is_kept);
                let accept =
                    |member: Rc<GroupMember<TcpListener>>| async move { member.accept().await.unwrap() };
                let tasks = [(); 3].map(|()| spawn(accept(Rc::clone(&member))));
                yield_now().await;
                for task in tasks {
                    let _client = TcpStream::connect(address).await.unwrap();
                    assert!(task.await.unwrap().is_some());
                }
            });
        }
    });
}

/// Members join and leave while clients connect. No connection may be lost.
#[test]
fn random_joins_and_leaves_lose_no_connection() {
    on_both_drivers(|setup| {
        for seed in 0..8 {
            eprintln!("{}: seed {seed}", setup.name);
            let mut random = Rng::with_seed(seed);
            let sockets: Vec<_> =
                (0..1 + random.usize(..3)).map(|_| std::net::TcpListener::bind(ANY_PORT).unwrap()).collect();
            let addresses: Vec<_> = sockets.iter().map(|socket| socket.local_addr().unwrap()).collect();
            let members = 1 + random.usize(..4);
            let group = ListenerGroup::<TcpListener>::new(sockets, members);
            let threads: Vec<_> = (0..members)
                .map(|number| {
                    let (group, setup) = (group.clone(), setup.clone());
                    thread::spawn(move || {
                        setup.run(async {
                            let member = Rc::new(group.join(number));
                            let tasks: Vec<_> = (0..3)
                                .map(|_| {
                                    let member = Rc::clone(&member);
                                    spawn(async move {
                                        let mut served = 0;
                                        while let Some(mut stream) = member.accept().await.unwrap() {
                                            served += 1;
                                            if stream.write_all(b"x").await.is_ok() {
                                                stream.shutdown().await.ok();
                                                stream.recv().await.ok();
                                            }
                                        }
                                        served
                                    })
                                })
                                .collect();
                            let mut served = 0;
                            for task in tasks {
                                served += task.await.unwrap();
                            }
                            served
                        })
                    })
                })
                .collect();
            group.wait_applied(hang_timeout()).unwrap();
            let client_count = 200;
            for round in 0..client_count {
                if random.usize(..20) == 0 {
                    group.pause();
                    if random.usize(..2) == 0 {
                        group.wait_applied(hang_timeout()).unwrap();
                    }
                    group.resume();
                }
                let mut client = std::net::TcpStream::connect(addresses[round % addresses.len()]).unwrap();
                client.set_read_timeout(Some(hang_timeout())).unwrap();
                let mut response = Vec::new();
                client.read_to_end(&mut response).unwrap();
                assert_eq!(response, b"x");
            }
            let waiting: Vec<_> =
                addresses.iter().map(|address| std::net::TcpStream::connect(address).unwrap()).collect();
            group.close(PendingConnections::Serve);
            for mut client in waiting {
                let mut response = Vec::new();
                client.set_read_timeout(Some(hang_timeout())).unwrap();
                client.read_to_end(&mut response).unwrap();
                assert_eq!(response, b"x");
            }
            let served: usize = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
            assert_eq!(served, client_count + addresses.len());
        }
    });
}

/// A client can reset or close its connection before the server has accepted it.
#[test]
fn address_of_peer_is_known_after_reset() {
    on_every_driver_and_sim(|setup| {
        setup.run(async {
            for address in [ANY_PORT, "[::1]:0"] {
                let listener = TcpListener::bind(address).unwrap();
                for is_accepted_before in [false, true] {
                    let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
                    let expected = client.local_addr().unwrap();
                    let server = match is_accepted_before {
                        true => {
                            let server = listener.accept().await.unwrap();
                            client.abort();
                            server
                        }
                        false => {
                            client.abort();
                            listener.accept().await.unwrap()
                        }
                    };
                    let handle = server.shutdown_handle();
                    until(|| handle.is_broken()).await;
                    assert_eq!(server.peer_addr().unwrap(), expected, "{}", setup.name);
                    assert_eq!(handle.peer_addr().unwrap(), expected);
                    assert_eq!(server.local_addr().unwrap(), listener.local_addr().unwrap());
                }
            }
        });
    });
}

#[test]
fn address_of_unix_peer_is_known_after_close() {
    on_every_driver_and_sim(|setup| {
        setup.run(async {
            let name = format!("anello-closed-{}-{}", std::process::id(), setup.name);
            let name = UnixAddr::from_abstract_name(&name).unwrap();
            let listener = UnixListener::bind_addr(&name).unwrap();
            drop(UnixStream::connect_addr(&name).await.unwrap());
            let server = listener.accept().await.unwrap();
            until(|| server.shutdown_handle().is_broken()).await;
            assert!(server.peer_addr().unwrap().is_unnamed());
        });
    });
}
