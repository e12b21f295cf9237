//! HTTP over TLS and QUIC.

use std::fs;
use std::process::Command;

use super::common::*;

#[test]
fn http_client_reuses_connections_to_nginx() {
    if !ensure("nginx", "nginx-light") {
        return;
    }
    let files = Certificate::new();
    let directory = files.directory.path();
    let (port, port_h2) = (free_port(), free_port());
    let configuration = format!(
        "daemon off; master_process off; pid nginx.pid; error_log stderr crit;
        events {{}}
        http {{
            access_log off;
            client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path fastcgi; uwsgi_temp_path uwsgi;
            scgi_temp_path scgi;
            ssl_certificate certificate.pem; ssl_certificate_key key.pem;
            server {{ listen 127.0.0.1:{port} ssl; location / {{ return 200 $connection; }} }}
            server {{ listen 127.0.0.1:{port_h2} ssl http2; location / {{ return 200 $connection; }} }}
        }}"
    );
    fs::write(directory.join("nginx.conf"), configuration).expect("the file is written");
    let mut command = Command::new(find("nginx").expect("nginx is installed"));
    command.arg("-p").arg(directory).args(["-c", "nginx.conf", "-e", "stderr"]);
    let mut server = Process::start(&mut command);
    server.wait_for_port(port);
    on_each_platform(|platform| {
        for (port, version) in [(port, "HTTP/1.1"), (port_h2, "HTTP/2.0")] {
            let url = format!("https://localhost:{port}/");
            let output = run("http_client", platform, &[&url, &files.certificate]);
            let responses: Vec<&str> = output.lines().collect();
            assert_eq!(responses.len(), 7, "{platform:?}: {output}");
            let prefix = format!("{version} 200 OK ");
            assert!(responses.iter().all(|response| response.starts_with(&prefix)), "{platform:?}: {output}");
            // Nginx returns the number of the connection: one for all in HTTP/2, and otherwise one for all requests in
            // sequence.
            let same = if version == "HTTP/2.0" { 7 } else { 3 };
            assert!(
                responses[..same].iter().all(|response| *response == responses[0]),
                "{platform:?}: {output}"
            );
        }
    });
}

#[test]
fn http3_serves_aioquic() {
    let Some(python) = python() else { return };
    let files = Certificate::new();
    on_each_platform(|platform| {
        let (_server, port) = serve("http3", platform, &[&files.certificate, &files.key]);
        let port = port.to_string();
        let arguments = [&port, &files.certificate, "/0", "/12", "/1000000", "/none"];
        let responses = output(&mut peer(python, "http3.py", &arguments), b"");
        assert_eq!(responses, "200 0\n200 12\n200 1000000\n404 0\n", "{platform:?}");
    });
}

#[test]
fn http3_client_receives_from_servers_on_each_platform() {
    let files = Certificate::new();
    on_each_platform(|server_platform| {
        let (_server, port) = serve("http3", server_platform, &[&files.certificate, &files.key]);
        on_each_platform(|platform| {
            // Enough for batches of datagrams.
            let arguments = ["client", &format!("127.0.0.1:{port}"), &files.certificate, "10000000"];
            let response = run("http3", platform, &arguments);
            assert_eq!(
                response, "200 OK 10000000\nclosed without error: true\n",
                "{platform:?} {server_platform:?}"
            );
        });
    });
}
