"""WebSocket peer on the package websockets.

usage: websocket.py server        prints its port, and returns each message
       websocket.py client PORT   sends messages of several sizes, and checks those that come back
"""
import asyncio
import sys

import websockets


async def echo(socket):
    async for message in socket:
        await socket.send(message)


async def server():
    async with websockets.serve(echo, "127.0.0.1", 0, max_size=None) as listener:
        print(listener.sockets[0].getsockname()[1], flush=True)
        await asyncio.Future()


async def client(port):
    async with websockets.connect(f"ws://127.0.0.1:{port}/", max_size=None) as socket:
        for message in ["", "ciao", "m" * 70_000, b"\0\1\2", b"x" * (1 << 20)]:
            await socket.send(message)
            assert await socket.recv() == message
        # A message in several frames, with a ping between them.
        async def fragments():
            yield "ci"
            await (await socket.ping())
            yield "ao"
        await socket.send(fragments())
        assert await socket.recv() == "ciao"
    print("closed with", socket.close_code)


if sys.argv[1] == "server":
    asyncio.run(server())
else:
    asyncio.run(client(int(sys.argv[2])))
