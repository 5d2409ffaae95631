#![allow(clippy::unwrap_used)]

use std::time::Instant;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinHandle;

use super::*;

const GENEROUS: Duration = Duration::from_secs(60);

/// Limits that a test changes where it needs to.
const TEST: Limits = Limits { connections: 4, duration: GENEROUS, interval: Duration::ZERO };

/// Answers with the path of the request.
#[derive(Clone)]
struct Echo;

impl Handler for Echo {
    async fn get(&self, request: Parts) -> Reply {
        text(StatusCode::OK, request.uri.path().to_owned())
    }
}

async fn serving(limits: Limits) -> (SocketAddr, JoinHandle<Infallible>) {
    let listener = bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = listener.local_addr().unwrap();
    (address, tokio::spawn(serve(limits, listener, Echo)))
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

fn get(fields: &str) -> String {
    format!("GET /metrics HTTP/1.1\r\nHost: a\r\n{fields}\r\n")
}

#[tokio::test]
async fn only_get_is_answered() {
    let (address, _server) = serving(TEST).await;
    let answered = exchange(address, &get("")).await;
    assert!(answered.starts_with("HTTP/1.1 200 OK\r\n"), "{answered}");
    assert!(
        answered.contains("connection: close\r\n") && answered.ends_with("\r\n\r\n/metrics"),
        "{answered}"
    );
    for method in ["POST", "PUT", "DELETE", "OPTIONS"] {
        let refused = exchange(address, &get("Content-Length: 4\r\n").replace("GET", method)).await;
        assert!(refused.starts_with("HTTP/1.1 405 ") && refused.contains("allow: GET\r\n"), "{refused}");
    }
    let garbage = exchange(address, "\u{1} \r\n\r\n").await;
    assert!(garbage.starts_with("HTTP/1.1 400 "), "{garbage}");
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
