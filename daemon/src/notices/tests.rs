#![allow(clippy::unwrap_used)]

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use super::*;

/// The answers to the requests for a path, one after the other: status and body. Versions count up.
type Answers = (&'static str, Vec<(u16, &'static str)>);

/// A metadata server with these answers. It leaves further requests open, as one that waits for a change. Also returns the
/// requests.
fn serve(kind: Kind, answers: Vec<Answers>) -> (Cloud, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = listener.local_addr().unwrap().to_string();
    let requests = Arc::<Mutex<Vec<String>>>::default();
    let seen = Arc::clone(&requests);
    std::thread::spawn(move || {
        let mut answers: Vec<(_, VecDeque<_>)> =
            answers.into_iter().map(|(path, answers)| (path, answers.into())).collect();
        let mut waiting = Vec::new();
        for (number, stream) in listener.incoming().enumerate() {
            let mut stream = stream.unwrap();
            let request = request(&stream);
            let of_path = answers.iter_mut().find(|(path, _)| request.contains(path));
            seen.lock().unwrap().push(request);
            let Some((status, body)) = of_path.and_then(|(_, answers)| answers.pop_front()) else {
                waiting.push(stream);
                continue;
            };
            let length = body.len();
            write!(
                stream,
                "HTTP/1.1 {status} x\r\netag: v{number}\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
            )
            .unwrap();
        }
    });
    (Cloud { kind, server }, requests)
}

fn request(stream: &TcpStream) -> String {
    let lines = BufReader::new(stream).lines().map(Result::unwrap);
    lines.take_while(|line| !line.is_empty()).collect::<Vec<_>>().join("\n").to_lowercase()
}

/// The first `count` notices: what to do, and a part of the text.
async fn first(cloud: Cloud, count: usize) -> Vec<(Advice, String)> {
    cloud.notices().take(count).map(|notice| (notice.advice, notice.text)).collect().await
}

#[test]
fn clouds_are_known_by_their_firmware() {
    let by = |vendor: &str, chassis: &str| Cloud::by(None, vendor, chassis).map(|cloud| cloud.kind);
    assert_eq!(by("Google\n", ""), Some(Kind::Google));
    assert_eq!(by("Amazon EC2\n", "Amazon EC2"), Some(Kind::Aws));
    assert_eq!(by("Microsoft Corporation\n", "7783-7084-3265-9085-8269-3286-77\n"), Some(Kind::Azure));
    assert_eq!(by("Microsoft Corporation", ""), None);
    assert_eq!(by("QEMU", ""), None);
    let named = Cloud::by(Some("127.0.0.1:1".to_owned()), "", "").unwrap();
    assert_eq!((named.kind, &*named.server), (Kind::Google, "127.0.0.1:1"));
}

#[tokio::test]
async fn google_answers_when_the_state_changes() {
    let (cloud, requests) =
        serve(Kind::Google, vec![("/preempted", vec![(200, "FALSE"), (200, "FALSE"), (200, "TRUE\n")])]);
    let notices = first(cloud, 1).await;
    assert!(notices[0].0 == Advice::Stop && notices[0].1.contains("Google Cloud preempts"), "{notices:?}");
    let requests = requests.lock().unwrap();
    assert!(requests.iter().all(|request| request.contains("metadata-flavor: google")));
    let asked: Vec<_> = requests.iter().filter(|request| request.contains("/preempted")).collect();
    assert!(!asked[0].contains("wait_for_change"), "{}", asked[0]);
    assert!(asked[1..3].iter().all(|request| request.contains("wait_for_change=true")), "{asked:?}");
    assert!(asked[1..3].iter().all(|request| request.contains("last_etag=v")), "{asked:?}");
}

#[tokio::test]
async fn maintenance_that_stops_a_vm_is_a_reason_to_save_and_one_that_moves_it_is_not() {
    let events = ["NONE", "MIGRATE_ON_HOST_MAINTENANCE", "MIGRATE_ON_HOST_MAINTENANCE", "NONE"];
    let events = events.into_iter().chain(["TERMINATE_ON_HOST_MAINTENANCE"]).map(|event| (200, event));
    let planned = r#"{"window_start_time": "2026-12-01T08:00:00Z"}"#;
    let answers = vec![("/maintenance-event", events.collect()), ("/upcoming-maintenance", vec![(503, "")])];
    let (cloud, _) = serve(Kind::Google, answers);
    let notices: Vec<_> = first(cloud, 2).await.into_iter().map(|(advice, _)| advice).collect();
    assert_eq!(notices, [Advice::Nothing, Advice::Save], "each once");
    let (cloud, _) = serve(Kind::Google, vec![("/upcoming-maintenance", vec![(200, planned)])]);
    assert_eq!(first(cloud, 1).await[0].0, Advice::Nothing);
}

#[tokio::test]
async fn aws_wants_a_token_and_has_no_action_until_there_is_one() {
    let action = r#"{"action": "terminate", "time": "2026-11-25T08:00:00Z"}"#;
    let rebalance = r#"{"noticeTime": "2026-11-25T07:00:00Z"}"#;
    let (cloud, requests) = serve(
        Kind::Aws,
        vec![
            ("/latest/api/token", vec![(200, "t1"), (200, "t2")]),
            ("/instance-action", vec![(404, ""), (401, ""), (404, ""), (200, action)]),
            ("/rebalance", vec![(404, ""), (404, ""), (200, rebalance), (200, rebalance)]),
        ],
    );
    let notices = first(cloud, 2).await;
    assert!(notices[0].0 == Advice::Save && notices[0].1.contains("may soon"), "{notices:?}");
    assert!(notices[1].0 == Advice::Stop && notices[1].1.contains("terminate"), "{notices:?}");
    let requests = requests.lock().unwrap();
    assert!(requests[0].starts_with("put /latest/api/token"));
    let with = |token: &str| requests.iter().filter(|request| request.contains(token)).count();
    assert_eq!((with("token: t1"), with("token: t2")), (3, 4), "{requests:#?}");
}

#[tokio::test]
async fn an_interruption_by_aws_counts_though_other_requests_fail() {
    let answers = vec![
        ("/latest/api/token", vec![(200, "t1")]),
        ("/instance-action", vec![(404, ""), (200, "{}")]),
        ("/rebalance", vec![(404, ""), (503, "")]),
    ];
    let (cloud, _) = serve(Kind::Aws, answers);
    assert_eq!(first(cloud, 1).await[0].0, Advice::Stop);
}

#[tokio::test]
async fn azure_lists_events_of_which_some_end_the_vm() {
    let none = r#"{"DocumentIncarnation": 1, "Events": [{"EventId": "a", "EventType": "Other"}]}"#;
    let reboot = r#"{"DocumentIncarnation": 1, "Events": [
        {"EventId": "a", "EventType": "Reboot", "NotBefore": "Mon, 30 Nov 2026 08:00:00 GMT"},
        {"EventId": "c", "EventType": "Freeze"}]}"#;
    let preempt = r#"{"DocumentIncarnation": 2, "Events": [{"EventId": "b", "EventType": "Preempt"}]}"#;
    let answers = vec![(503, ""), (200, none), (200, reboot), (200, reboot), (200, preempt)];
    let (cloud, requests) = serve(Kind::Azure, vec![("/scheduledevents", answers)]);
    let notices = first(cloud, 3).await;
    let advice: Vec<_> = notices.iter().map(|notice| notice.0).collect();
    assert_eq!(advice, [Advice::Save, Advice::Nothing, Advice::Stop]);
    assert!(notices[0].1.ends_with("Reboot, not before Mon, 30 Nov 2026 08:00:00 GMT"), "{notices:?}");
    assert!(requests.lock().unwrap().iter().all(|request| request.contains("metadata: true")));
}
