//! Notices that a cloud is about to take this VM away.
//!
//! A VM that is shut down in order sends SIGTERM to its services, which also stops the daemon. The notice comes earlier: at
//! once on Google Cloud, two minutes before on AWS, thirty seconds on Azure. Each cloud has a metadata server that only its
//! VMs reach; on other machines nothing is asked.
//!
//! | cloud | address | notice |
//! |---|---|---|
//! | Google Cloud | `/computeMetadata/v1/instance/preempted`, whose answer waits for a change | `TRUE` |
//! | AWS | `/latest/meta-data/spot/instance-action`, with a token (IMDSv2) | an action instead of 404 |
//! | Azure | `/metadata/scheduledevents` | an event `Preempt` or `Terminate` |

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt, Empty, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde::Deserialize;

/// The pause between requests where answers do not wait for a change, and after a failed one.
const INTERVAL: Duration = Duration::from_secs(3);

/// For how long Google's server waits for a change.
const WAIT_SECONDS: u64 = 300;

/// Time limit of a request, beyond the time that the server waits.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The maximum size of an answer.
const MAX_ANSWER_BYTES: usize = 1 << 20;

/// A cloud, with the address of its metadata server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cloud {
    kind: Kind,
    server: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Google,
    Aws,
    Azure,
}

impl Cloud {
    /// The cloud of this host, by its firmware or by the variable that Google's own programs use.
    pub(crate) fn of_host() -> Option<Self> {
        let firmware =
            |name: &str| fs::read_to_string(format!("/sys/class/dmi/id/{name}")).unwrap_or_default();
        let google = std::env::var("GCE_METADATA_HOST").ok().filter(|host| !host.is_empty());
        Self::by(google, &firmware("sys_vendor"), &firmware("chassis_asset_tag"))
    }

    fn by(google: Option<String>, vendor: &str, chassis: &str) -> Option<Self> {
        let (kind, server) = match (google, vendor.trim(), chassis.trim()) {
            (Some(host), ..) => (Kind::Google, host),
            (None, "Google", _) => (Kind::Google, "metadata.google.internal".to_owned()),
            (None, "Amazon EC2", _) => (Kind::Aws, "169.254.169.254".to_owned()),
            // The tag of every VM on Azure; other machines of Microsoft have none.
            (None, "Microsoft Corporation", "7783-7084-3265-9085-8269-3286-77") => {
                (Kind::Azure, "169.254.169.254".to_owned())
            }
            _ => return None,
        };
        Some(Self { kind, server })
    }

    /// Waits until the cloud announces that it takes the VM away; returns the announcement.
    pub(crate) async fn preempted(&self) -> String {
        let mut watch =
            Watch { cloud: self, client: Client::builder(TokioExecutor::new()).build_http(), token: None };
        let mut has_failed = false;
        loop {
            match watch.look().await {
                Ok(Some(notice)) => return notice,
                Ok(None) => has_failed = false,
                Err(error) => {
                    if !has_failed {
                        tracing::warn!("cannot ask the metadata server for notices of preemption: {error:#}");
                    }
                    has_failed = true;
                    tokio::time::sleep(INTERVAL).await;
                }
            }
        }
    }
}

/// Asks a metadata server.
struct Watch<'a> {
    cloud: &'a Cloud,
    client: Client<HttpConnector, Empty<Bytes>>,
    /// The token of AWS, or the version of Google's last answer.
    token: Option<String>,
}

/// The scheduled events of Azure.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ScheduledEvents {
    events: Vec<ScheduledEvent>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ScheduledEvent {
    event_type: String,
}

impl Watch<'_> {
    /// The notice, if there is one; otherwise returns after a while.
    async fn look(&mut self) -> Result<Option<String>> {
        match self.cloud.kind {
            Kind::Google => self.look_on_google().await,
            Kind::Aws => self.look_on_aws().await,
            Kind::Azure => self.look_on_azure().await,
        }
    }

    async fn look_on_google(&mut self) -> Result<Option<String>> {
        let path = match &self.token {
            None => "/computeMetadata/v1/instance/preempted".to_owned(),
            Some(version) => format!(
                "/computeMetadata/v1/instance/preempted?wait_for_change=true&timeout_sec={WAIT_SECONDS}&last_etag={version}"
            ),
        };
        let (status, headers, body) = self
            .send(Method::GET, &path, ("Metadata-Flavor", "Google"), Duration::from_secs(WAIT_SECONDS))
            .await?;
        expect_success(status)?;
        let version = headers.get("etag").and_then(|version| version.to_str().ok());
        self.token = Some(version.context("an answer without a version")?.to_owned());
        Ok((body.trim() == "TRUE").then(|| "Google Cloud preempts this VM".to_owned()))
    }

    async fn look_on_aws(&mut self) -> Result<Option<String>> {
        let token = match self.token.take() {
            Some(token) => token,
            None => {
                let lifetime = ("X-aws-ec2-metadata-token-ttl-seconds", "21600");
                let (status, _, token) =
                    self.send(Method::PUT, "/latest/api/token", lifetime, Duration::ZERO).await?;
                expect_success(status)?;
                token
            }
        };
        let header = ("X-aws-ec2-metadata-token", token.as_str());
        let (status, _, body) =
            self.send(Method::GET, "/latest/meta-data/spot/instance-action", header, Duration::ZERO).await?;
        match status {
            StatusCode::NOT_FOUND => self.token = Some(token),
            // The next request needs another token.
            StatusCode::UNAUTHORIZED => {}
            _ => {
                expect_success(status)?;
                return Ok(Some(format!("AWS takes this VM away: {}", body.trim())));
            }
        }
        tokio::time::sleep(INTERVAL).await;
        Ok(None)
    }

    async fn look_on_azure(&mut self) -> Result<Option<String>> {
        let path = "/metadata/scheduledevents?api-version=2020-07-01";
        // The first request may take two minutes, in which Azure starts the service.
        let (status, _, body) =
            self.send(Method::GET, path, ("Metadata", "true"), Duration::from_secs(120)).await?;
        expect_success(status)?;
        let found: ScheduledEvents = serde_json::from_str(&body).context("the list of scheduled events")?;
        let last = found.events.iter().find(|event| ["Preempt", "Terminate"].contains(&&*event.event_type));
        if let Some(event) = last {
            return Ok(Some(format!("Azure takes this VM away: {}", event.event_type)));
        }
        tokio::time::sleep(INTERVAL).await;
        Ok(None)
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        header: (&str, &str),
        wait: Duration,
    ) -> Result<(StatusCode, HeaderMap, String)> {
        let address = format!("http://{}{path}", self.cloud.server);
        let request = Request::builder().method(method).uri(&address).header(header.0, header.1);
        let request = request.body(Empty::new())?;
        let answer = async {
            let answer = self.client.request(request).await?;
            let (head, body) = answer.into_parts();
            let body = Limited::new(body, MAX_ANSWER_BYTES)
                .collect()
                .await
                .map_err(|error| anyhow::anyhow!(error))?;
            Ok::<_, anyhow::Error>((head.status, head.headers, body.to_bytes()))
        };
        let (status, headers, body) = tokio::time::timeout(wait + TIMEOUT, answer)
            .await
            .context("no answer in time")?
            .context(address)?;
        Ok((status, headers, String::from_utf8_lossy(&body).into_owned()))
    }
}

fn expect_success(status: StatusCode) -> Result<()> {
    if !status.is_success() {
        bail!("the metadata server answers {status}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::io::{BufRead, BufReader, Write};
    use std::net::{TcpListener, TcpStream};

    use super::*;

    /// A metadata server that gives these answers, one after the other: status, version and body. Returns the requests.
    fn serve(kind: Kind, answers: Vec<(u16, &'static str)>) -> (Cloud, std::thread::JoinHandle<Vec<String>>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = listener.local_addr().unwrap().to_string();
        let serving = std::thread::spawn(move || {
            let mut requests = Vec::new();
            for (number, (status, body)) in answers.into_iter().enumerate() {
                let (mut stream, _) = listener.accept().unwrap();
                requests.push(request(&stream));
                let length = body.len();
                write!(
                    stream,
                    "HTTP/1.1 {status} x\r\netag: v{number}\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
                )
                .unwrap();
            }
            requests
        });
        (Cloud { kind, server }, serving)
    }

    fn request(stream: &TcpStream) -> String {
        let lines = BufReader::new(stream).lines().map(Result::unwrap);
        lines.take_while(|line| !line.is_empty()).collect::<Vec<_>>().join("\n")
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
        let (cloud, serving) = serve(Kind::Google, vec![(200, "FALSE"), (200, "FALSE"), (200, "TRUE\n")]);
        assert!(cloud.preempted().await.contains("Google Cloud"));
        let requests = serving.join().unwrap();
        assert!(requests.iter().all(|request| request.to_lowercase().contains("metadata-flavor: google")));
        assert!(!requests[0].contains("wait_for_change"), "{}", requests[0]);
        assert!(requests[1].contains("wait_for_change=true") && requests[1].contains("last_etag=v0"));
        assert!(requests[2].contains("last_etag=v1"));
    }

    #[tokio::test]
    async fn aws_wants_a_token_and_has_no_action_until_there_is_one() {
        let action = r#"{"action": "terminate", "time": "2026-11-25T08:00:00Z"}"#;
        let answers = vec![(200, "t1"), (404, ""), (401, ""), (200, "t2"), (200, action)];
        let (cloud, serving) = serve(Kind::Aws, answers);
        assert!(cloud.preempted().await.contains("terminate"));
        let requests = serving.join().unwrap();
        assert!(requests[0].starts_with("PUT /latest/api/token"));
        assert!(requests[2].contains("token: t1") && requests[4].contains("token: t2"), "{requests:?}");
    }

    #[tokio::test]
    async fn azure_lists_events_of_which_some_end_the_vm() {
        let reboot = r#"{"DocumentIncarnation": 1, "Events": [{"EventId": "a", "EventType": "Reboot"}]}"#;
        let preempt = r#"{"DocumentIncarnation": 2, "Events": [{"EventId": "b", "EventType": "Preempt"}]}"#;
        let (cloud, serving) = serve(Kind::Azure, vec![(503, ""), (200, reboot), (200, preempt)]);
        assert!(cloud.preempted().await.contains("Preempt"));
        assert!(
            serving.join().unwrap().iter().all(|request| request.to_lowercase().contains("metadata: true"))
        );
    }
}
