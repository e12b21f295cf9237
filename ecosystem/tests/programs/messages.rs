//! WebSocket.

use super::common::*;

#[test]
fn websocket_calls_and_serves_python() {
    let Some(python) = python() else { return };
    let expected =
        "text 0\ntext 5\ntext 125\ntext 126\ntext 65535\ntext 65536\ntext 1048576\nbinary 10\nclosed\n";
    on_each_platform(|platform| {
        let (_server, port) = serve("websocket", platform, &[]);
        let exchange = output(&mut peer(python, "websocket.py", &["client", &port.to_string()]), b"");
        assert_eq!(exchange, "closed with 1000\n", "{platform:?}");
        let address = format!("127.0.0.1:{port}");
        assert_eq!(run("websocket", platform, &["client", &address]), expected, "{platform:?}");

        let mut server = Process::start(&mut peer(python, "websocket.py", &["server"]));
        let address = format!("127.0.0.1:{}", server.line());
        assert_eq!(run("websocket", platform, &["client", &address]), expected, "{platform:?}");
    });
}
