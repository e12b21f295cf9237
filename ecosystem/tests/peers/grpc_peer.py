"""gRPC peer on the package grpcio, without generated code.

usage: grpc_peer.py server        prints its port, and serves proto/greeter.proto
       grpc_peer.py client PORT   calls every method
"""
import sys
import threading
from concurrent import futures

import grpc


def string_field(text):
    """Encodes a message whose field 1 is a string shorter than 128 bytes."""
    return b"\x0a" + bytes([len(text)]) + text.encode() if text else b""


def text_of(message):
    return message[2:].decode()


def greet(name, context):
    if not name:
        context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the name is empty")
    return string_field("ciao, " + text_of(name))


def count(limit, context):
    number = sum((byte & 127) << 7 * place for place, byte in enumerate(limit[1:]))
    return (string_field(f"ciao {index}") for index in range(1, number + 1))


def wait(name, context):
    ended = threading.Event()
    context.add_callback(ended.set)
    ended.wait(60)
    print("cancelled", flush=True)


def serve():
    methods = {
        "Greet": grpc.unary_unary_rpc_method_handler(greet),
        "Count": grpc.unary_stream_rpc_method_handler(count),
        "Wait": grpc.unary_unary_rpc_method_handler(wait),
    }
    server = grpc.server(futures.ThreadPoolExecutor(4))
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("greeter.Greeter", methods)])
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    server.start()
    server.wait_for_termination()


def call(port):
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        unary_greet = channel.unary_unary("/greeter.Greeter/Greet")
        unary_wait = channel.unary_unary("/greeter.Greeter/Wait")
        print(text_of(unary_greet(string_field("Ada"))))
        try:
            unary_greet(b"")
        except grpc.RpcError as error:
            print(error.code().name, error.details())
        print(len(list(channel.unary_stream("/greeter.Greeter/Count")(b"\x08\xe8\x07"))), "greetings")
        try:
            unary_wait(b"", timeout=0.2)
        except grpc.RpcError as error:
            print(error.code().name)
        waiting = unary_wait.future(b"")
        # The response to a later call shows that the server has received this one.
        unary_greet(string_field("Bob"))
        waiting.cancel()
        print("cancelled", waiting.cancelled())
        print(text_of(unary_greet(string_field("Bob"))))


if sys.argv[1] == "server":
    serve()
else:
    call(int(sys.argv[2]))
