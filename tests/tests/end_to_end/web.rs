//! The web page of a daemon: who may read it, and what it shows, compared with the commands.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;

use millstream_tests::programs::{Daemon, wait_until};
use millstream_tests::tiny_job::TinyJob;
use serde_json::Value;

/// The page's address and the token in it.
struct Page {
    address: String,
    token: String,
}

impl Page {
    fn of(url: &str) -> Self {
        let (address, token) = url.trim().strip_prefix("http://").unwrap().split_once("/?token=").unwrap();
        Self { address: address.to_owned(), token: token.to_owned() }
    }

    /// The head and the body of the response.
    fn request(&self, line: &str, fields: &str) -> (String, String) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        write!(stream, "{line} HTTP/1.1\r\nHost: {}\r\n{fields}\r\n", self.address).unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).unwrap();
        let (head, body) = response.split_once("\r\n\r\n").unwrap();
        (head.to_owned(), body.to_owned())
    }

    /// The cookie that the token is exchanged for, as a header field.
    fn cookie(&self) -> String {
        let (head, _) = self.request(&format!("GET /?token={}", self.token), "");
        assert!(head.starts_with("HTTP/1.1 303 "), "{head}");
        let set = head.lines().find_map(|line| line.strip_prefix("set-cookie: ")).unwrap();
        format!("Cookie: {}\r\n", set.split(';').next().unwrap())
    }

    fn json(&self, path: &str, cookie: &str) -> Value {
        let (head, body) = self.request(&format!("GET {path}"), cookie);
        assert!(head.starts_with("HTTP/1.1 200 OK"), "{head}");
        serde_json::from_str(&body).unwrap()
    }
}

#[test]
fn the_page_shows_a_job_to_those_who_have_the_token() {
    let job = TinyJob::new();
    let daemon = Daemon::start(job.directory());
    let file = job.file();
    let line = ["submit", file.to_str().unwrap(), "--set", "data.epochs=100000"];
    let id = daemon.json(&line)["id"].as_str().unwrap().to_owned();
    wait_until("the job has an evaluation", || daemon.show(&id)["eval"].is_object());

    let url = daemon.json(&["web"])["url"].as_str().unwrap().to_owned();
    let printed = daemon.run(&["web"]);
    assert_eq!(String::from_utf8(printed.stdout).unwrap().trim(), url);
    let page = Page::of(&url);
    for fields in ["", "Cookie: a=b\r\n"] {
        let (head, body) = page.request("GET /api/overview", fields);
        assert!(head.starts_with("HTTP/1.1 403 ") && !body.contains(&id), "{head}\n{body}");
    }

    let cookie = page.cookie();
    let (head, html) = page.request("GET /", &cookie);
    assert!(head.contains("content-type: text/html") && head.contains("default-src 'none'"), "{head}");
    assert!(html.contains("<title>Millstream</title>"), "{html}");
    let overview = page.json("/api/overview", &cookie);
    assert_eq!(overview["jobs"][0]["id"], *id);
    assert_eq!(overview["snapshot"]["jobs"][0]["job"]["state"], "running");

    daemon.json(&["cancel", &id]);
    let shown = page.json(&format!("/api/jobs/{id}"), &cookie);
    let history = daemon.json(&["history", &id]);
    assert_eq!(shown["job"]["state"], "cancelled");
    assert_eq!(shown["points"], history["points"]);
    assert_eq!(shown["evaluations"], history["evaluations"]);
    assert!(!shown["points"].as_array().unwrap().is_empty());
    let logged = shown["log"].as_array().unwrap().last().unwrap()["text"].as_str().unwrap().to_owned();
    let logs = String::from_utf8(daemon.run(&["logs", &id]).stdout).unwrap();
    assert!(logs.trim_end().ends_with(&logged), "{logged}\n{logs}");

    let (head, _) = page.request("GET /api/jobs/none-such", &cookie);
    assert!(head.starts_with("HTTP/1.1 404 "), "{head}");
    let (head, _) = page.request(&format!("POST /api/jobs/{id}"), &format!("{cookie}Content-Length: 0\r\n"));
    assert!(head.starts_with("HTTP/1.1 405 "), "{head}");
    daemon.stop();
}

#[test]
fn a_configured_address_is_served_from_the_start_with_a_new_token_each_time() {
    let job = TinyJob::new();
    let mut tokens = Vec::new();
    for _ in 0..2 {
        let daemon = Daemon::start_with(job.directory(), &[], &["--web", "127.0.0.1:0"]);
        let log = fs::read_to_string(job.directory().join("daemon.log")).unwrap();
        let line = log.lines().rfind(|line| line.contains("serving the web page")).unwrap();
        let page = Page::of(daemon.json(&["web"])["url"].as_str().unwrap());
        assert!(line.contains(&page.address) && !log.contains(&page.token), "{line}");
        page.cookie();
        let note = daemon.run(&["web", "--port", "40000"]);
        assert!(String::from_utf8_lossy(&note.stderr).contains("already"), "{note:?}");
        tokens.push(page.token);
        daemon.stop();
    }
    assert_ne!(tokens[0], tokens[1]);
}
