"""HTTP/3 client on the package aioquic.

usage: http3.py PORT CA_FILE PATH...   requests the paths at the same time, and prints the status and the size of each
"""
import asyncio
import sys

from aioquic.asyncio import QuicConnectionProtocol, connect
from aioquic.h3.connection import H3_ALPN, H3Connection
from aioquic.h3.events import DataReceived, HeadersReceived
from aioquic.quic.configuration import QuicConfiguration


class Client(QuicConnectionProtocol):
    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.http = H3Connection(self._quic)
        self.responses = {}

    def get(self, path):
        stream = self._quic.get_next_available_stream_id()
        fields = {":method": "GET", ":scheme": "https", ":authority": "localhost", ":path": path}
        self.http.send_headers(stream, [(name.encode(), value.encode()) for name, value in fields.items()], True)
        self.responses[stream] = {"status": "", "bytes": 0, "end": asyncio.get_running_loop().create_future()}
        self.transmit()
        return self.responses[stream]

    def quic_event_received(self, event):
        for received in self.http.handle_event(event):
            response = self.responses.get(received.stream_id)
            if response is None:
                continue
            if isinstance(received, HeadersReceived):
                response["status"] = dict(received.headers)[b":status"].decode()
            elif isinstance(received, DataReceived):
                response["bytes"] += len(received.data)
            if received.stream_ended:
                response["end"].set_result(None)


async def main(port, authority, paths):
    configuration = QuicConfiguration(is_client=True, alpn_protocols=H3_ALPN, server_name="localhost")
    configuration.load_verify_locations(authority)
    async with connect("127.0.0.1", port, configuration=configuration, create_protocol=Client) as client:
        responses = [client.get(path) for path in paths]
        for response in responses:
            await response["end"]
            print(response["status"], response["bytes"])


asyncio.run(main(int(sys.argv[1]), sys.argv[2], sys.argv[3:]))
