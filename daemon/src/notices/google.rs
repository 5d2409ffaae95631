//! Google Cloud: <https://cloud.google.com/compute/docs/metadata/getting-live-migration-notice> and
//! <https://cloud.google.com/compute/docs/instances/create-use-spot>.

use std::time::Duration;

use anyhow::{Context, Result};
use http::StatusCode;
use serde::Deserialize;

use super::server::Server;
use super::{Advice, Notice, Question};

const HEADER: (&str, &str) = ("Metadata-Flavor", "Google");

/// For how long the server waits for a change.
const WAIT: Duration = Duration::from_secs(300);

/// The pause between looks at the plan, which is known days ahead.
const PLAN_PAUSE: Duration = Duration::from_secs(600);

/// A value whose changes can be waited for.
#[derive(Default)]
struct Watched {
    /// The version of the last answer.
    version: Option<String>,
}

/// Whether the VM is preempted.
#[derive(Default)]
pub(super) struct Preempted(Watched);

/// What host maintenance does to the VM.
#[derive(Default)]
pub(super) struct Maintenance(Watched);

/// When the next maintenance is.
pub(super) struct Planned;

/// The next maintenance. All values are strings, and any may be absent.
#[derive(Deserialize)]
struct Window {
    window_start_time: Option<String>,
    maintenance_status: Option<String>,
}

impl Watched {
    /// The value of `key` of this VM: the first time at once, later when it changes or after a while.
    async fn next(&mut self, key: &str, server: &Server) -> Result<String> {
        let mut path = format!("/computeMetadata/v1/instance/{key}");
        if let Some(version) = &self.version {
            let seconds = WAIT.as_secs();
            path += &format!("?wait_for_change=true&timeout_sec={seconds}&last_etag={version}");
        }
        let answer = server.get(&path, HEADER, WAIT).await?;
        let value = answer.success()?.trim().to_owned();
        let version = answer.headers.get("etag").and_then(|version| version.to_str().ok());
        self.version = Some(version.context("an answer without a version")?.to_owned());
        Ok(value)
    }
}

impl Question for Preempted {
    const PAUSE: Duration = Duration::ZERO;

    async fn ask(&mut self, server: &Server) -> Result<Vec<Notice>> {
        let is_preempted = self.0.next("preempted", server).await? == "TRUE";
        let notice = || Notice::new(Advice::Stop, "Google Cloud preempts this VM");
        Ok(is_preempted.then(notice).into_iter().collect())
    }
}

impl Question for Maintenance {
    const PAUSE: Duration = Duration::ZERO;

    async fn ask(&mut self, server: &Server) -> Result<Vec<Notice>> {
        let notice = match self.0.next("maintenance-event", server).await?.as_str() {
            "TERMINATE_ON_HOST_MAINTENANCE" => {
                Notice::new(Advice::Save, "Google Cloud stops this VM soon for maintenance of its host")
            }
            "MIGRATE_ON_HOST_MAINTENANCE" => {
                Notice::new(Advice::Nothing, "Google Cloud moves this VM to another host, which pauses it")
            }
            _ => return Ok(Vec::new()),
        };
        Ok(vec![notice])
    }
}

impl Question for Planned {
    const PAUSE: Duration = PLAN_PAUSE;

    async fn ask(&mut self, server: &Server) -> Result<Vec<Notice>> {
        let path = "/computeMetadata/v1/instance/upcoming-maintenance?alt=json";
        let answer = server.get(path, HEADER, Duration::ZERO).await?;
        Ok(match answer.status {
            // No maintenance is planned, or that of VMs of this kind is not announced.
            StatusCode::NOT_FOUND | StatusCode::SERVICE_UNAVAILABLE => Vec::new(),
            _ => planned(answer.success()?)?.into_iter().collect(),
        })
    }
}

fn planned(text: &str) -> Result<Option<Notice>> {
    let window: Window = serde_json::from_str(text).context("the planned maintenance")?;
    let Some(start) = window.window_start_time else { return Ok(None) };
    let status = window.maintenance_status.map(|status| format!(" ({})", status.to_lowercase()));
    let status = status.unwrap_or_default();
    Ok(Some(Notice::new(
        Advice::Nothing,
        format!("Google Cloud plans maintenance of this VM's host at {start}{status}"),
    )))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_plan_without_a_start_is_none() {
        let text = r#"{"can_reschedule": "false", "maintenance_status": "PENDING", "window_start_time": "2026-12-01T08:00:00Z"}"#;
        let notice = planned(text).unwrap().unwrap();
        assert!(notice.text.ends_with("at 2026-12-01T08:00:00Z (pending)"), "{}", notice.text);
        assert_eq!(planned("{}").unwrap(), None);
        assert!(planned("none").is_err());
    }
}
