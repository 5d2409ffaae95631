#![allow(clippy::unwrap_used)]

use std::time::Instant;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinHandle;

use super::*;

const GENEROUS: Duration = Duration::from_secs(60);

/// Limits that a test changes where it needs to.
const TEST: Limits = Limits { connections: 4, duration: GENEROUS, interval: Duration::ZERO };

async fn serving(limits: Limits) -> (SocketAddr, JoinHandle<Infallible>) {
    let listener = bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = listener.local_addr().unwrap();
    (address, tokio::spawn(serve_within(limits, listener, Daemon::start_embedded().unwrap())))
}

/// Sends `request` and returns everything until the server closes the connection.
async fn exchange(address: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    read(&mut stream).await
}

/// What the server sends before it closes the connection.
async fn read(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    let received = tokio::time::timeout(GENEROUS, stream.read_to_end(&mut bytes)).await.unwrap();
    // A connection that is reset has ended, too.
    drop(received);
    String::from_utf8(bytes).unwrap()
}

fn get(accept: &str) -> String {
    format!("GET /metrics HTTP/1.1\r\nHost: a\r\n{accept}\r\n")
}

#[tokio::test]
async fn metrics_are_served_in_the_format_that_the_client_prefers() {
    let (address, _server) = serving(TEST).await;
    let plain = exchange(address, &get("")).await;
    assert!(plain.starts_with("HTTP/1.1 200 OK\r\n"), "{plain}");
    assert!(plain.contains("content-type: text/plain; version=0.0.4; charset=utf-8\r\n"), "{plain}");
    assert!(plain.contains("connection: close\r\n"), "{plain}");
    assert!(plain.contains("\nmillstream_jobs{state=\"queued\"} 0\n"), "{plain}");
    let open = exchange(address, &get("Accept: application/openmetrics-text;version=1.0.0\r\n")).await;
    assert!(open.contains("content-type: application/openmetrics-text; version=1.0.0; charset=utf-8\r\n"));
    assert!(open.ends_with("\n# EOF\n"), "{open}");
}

#[tokio::test]
async fn other_paths_methods_and_protocols_are_refused() {
    let (address, _server) = serving(TEST).await;
    let status = |response: String| response.lines().next().unwrap_or_default().to_owned();
    for (request, wanted) in [
        ("GET / HTTP/1.1\r\nHost: a\r\n\r\n", "HTTP/1.1 404 Not Found"),
        ("GET /metrics/ HTTP/1.1\r\nHost: a\r\n\r\n", "HTTP/1.1 404 Not Found"),
        (
            "POST /metrics HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody",
            "HTTP/1.1 405 Method Not Allowed",
        ),
        ("HEAD /metrics HTTP/1.1\r\nHost: a\r\n\r\n", "HTTP/1.1 405 Method Not Allowed"),
        ("\u{1} \r\n\r\n", "HTTP/1.1 400 Bad Request"),
    ] {
        assert_eq!(status(exchange(address, request).await), wanted, "{request:?}");
    }
    let put = exchange(address, "PUT /metrics HTTP/1.1\r\nHost: a\r\n\r\n").await;
    assert!(put.contains("allow: GET\r\n"), "{put}");
}

#[tokio::test]
async fn a_request_head_is_limited_in_bytes_and_fields() {
    let (address, _server) = serving(TEST).await;
    let long = get(&format!("X: {}\r\n", "x".repeat(MAX_HEAD_BYTES)));
    let many = get(&"X: x\r\n".repeat(MAX_FIELDS));
    for request in [long, many] {
        let response = exchange(address, &request).await;
        assert!(response.starts_with("HTTP/1.1 431 "), "{response}");
    }
    let allowed = get(&"X: x\r\n".repeat(MAX_FIELDS - 1));
    assert!(exchange(address, &allowed).await.starts_with("HTTP/1.1 200 OK\r\n"));
}

#[tokio::test]
async fn a_connection_answers_one_request() {
    let (address, _server) = serving(TEST).await;
    let both = exchange(address, &get("").repeat(2)).await;
    assert_eq!(both.matches("HTTP/1.1 ").count(), 1, "{both}");
}

#[tokio::test]
async fn a_request_that_never_ends_is_closed_at_the_deadline() {
    let (address, _server) = serving(Limits { duration: Duration::from_millis(100), ..TEST }).await;
    let began = Instant::now();
    let mut slow = TcpStream::connect(address).await.unwrap();
    slow.write_all(b"GET /metrics HTTP/1.1\r\n").await.unwrap();
    assert_eq!(read(&mut slow).await, "");
    assert!(began.elapsed() >= Duration::from_millis(100));
}

#[tokio::test]
async fn clients_that_hold_connections_lose_them_to_new_ones() {
    let (address, _server) = serving(TEST).await;
    let mut holders = Vec::new();
    for _ in 0..TEST.connections {
        let mut holder = TcpStream::connect(address).await.unwrap();
        holder.write_all(b"GET /metrics HTTP/1.1\r\n").await.unwrap();
        holders.push(holder);
    }
    assert!(exchange(address, &get("")).await.starts_with("HTTP/1.1 200 OK\r\n"));
    assert_eq!(read(&mut holders.remove(0)).await, "", "the oldest one is closed");
    // The others still are answered.
    let mut last = holders.pop().unwrap();
    last.write_all(b"Host: a\r\n\r\n").await.unwrap();
    assert!(read(&mut last).await.starts_with("HTTP/1.1 200 OK\r\n"));
}

#[tokio::test]
async fn connections_are_accepted_at_a_bounded_rate() {
    let interval = Duration::from_millis(30);
    let (address, _server) = serving(Limits { interval, ..TEST }).await;
    let began = Instant::now();
    for _ in 0..5 {
        assert!(exchange(address, &get("")).await.starts_with("HTTP/1.1 200 OK\r\n"));
    }
    assert!(began.elapsed() >= 4 * interval, "{:?}", began.elapsed());
}

#[tokio::test]
async fn an_address_in_use_is_an_error_that_names_the_key() {
    let first = bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let error = format!("{:#}", bind(first.local_addr().unwrap()).unwrap_err());
    assert!(error.starts_with("`metrics_address`: cannot listen on 127.0.0.1:"), "{error}");
}

#[test]
fn the_preferred_format_follows_the_weights() {
    let of = |accept: &'static str| {
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, HeaderValue::from_static(accept));
        accepted(&headers)
    };
    for open in [
        // Prometheus 2 and 3.
        "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,\
         text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
        "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,text/plain;version=1.0.0;q=0.4",
        "text/plain; q=0.2, Application/OpenMetrics-Text",
    ] {
        assert_eq!(of(open), Format::OpenMetrics, "{open}");
    }
    for plain in [
        "*/*",
        "text/html,*/*;q=0.8",
        "application/openmetrics-text;q=0.1,text/plain",
        "application/openmetrics-text;q=0",
        "application/openmetrics-text;version=2.0.0",
        "application/openmetrics-text;q=x",
        ";;=,,",
    ] {
        assert_eq!(of(plain), Format::Prometheus, "{plain}");
    }
    assert_eq!(accepted(&HeaderMap::new()), Format::Prometheus);
}
