//! A notice that the VM will be stopped for maintenance: jobs save a checkpoint, and train on.

#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::mpsc::channel;

use millstream_tests::programs::{Daemon, wait_until};
use millstream_tests::tiny_job::TinyJob;

fn answer(mut stream: TcpStream, value: &str) {
    let length = value.len();
    let head =
        format!("HTTP/1.1 200 OK\r\netag: {length}\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n");
    stream.write_all((head + value).as_bytes()).unwrap();
}

#[test]
fn a_job_saves_a_checkpoint_before_maintenance_and_trains_on() {
    let job = TinyJob::new();
    let metadata = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = metadata.local_addr().unwrap().to_string();
    // Those who wait for a change of the maintenance.
    let (waiting, waits) = channel();
    std::thread::spawn(move || {
        let mut others = Vec::new();
        for stream in metadata.incoming().map(Result::unwrap) {
            let mut line = String::new();
            BufReader::new(&stream).read_line(&mut line).unwrap();
            if !line.contains("/maintenance-event") {
                others.push(stream);
            } else if line.contains("wait_for_change") {
                waiting.send(stream).unwrap();
            } else {
                answer(stream, "NONE");
            }
        }
    });
    let daemon = Daemon::start_in(job.directory(), &[("GCE_METADATA_HOST", Path::new(&address))]);
    let long =
        ["submit", "job.toml", "--set", "data.epochs=100000", "--set", "checkpoint.every_steps=100000000"];
    let file = job.file();
    let long = long.map(|word| if word == "job.toml" { file.to_str().unwrap() } else { word });
    let id = daemon.json(&long)["id"].as_str().unwrap().to_owned();
    wait_until("the job trains", || daemon.show(&id)["progress"]["step"].as_u64() > Some(0));
    assert!(daemon.show(&id)["checkpoint"].is_null());
    answer(waits.recv().unwrap(), "TERMINATE_ON_HOST_MAINTENANCE");
    wait_until("it has saved", || !daemon.show(&id)["checkpoint"].is_null());
    let saved = daemon.show(&id)["progress"]["step"].as_u64();
    wait_until("it trains on", || daemon.show(&id)["progress"]["step"].as_u64() > saved);
    daemon.json(&["cancel", &id]);
    daemon.stop();
}
