//! Azure: <https://learn.microsoft.com/azure/virtual-machines/linux/scheduled-events>.

use std::time::Duration;

use anyhow::{Context, Result};
use serde::Deserialize;

use super::server::Server;
use super::{Advice, Notice, PAUSE, Question};

const PATH: &str = "/metadata/scheduledevents?api-version=2020-07-01";

/// The first request may take this long: Azure starts the service with it.
const WAIT: Duration = Duration::from_secs(120);

/// The scheduled events.
pub(super) struct Events;

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ScheduledEvents {
    events: Vec<ScheduledEvent>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ScheduledEvent {
    event_type: String,
    #[serde(default)]
    not_before: String,
}

impl Question for Events {
    const PAUSE: Duration = PAUSE;

    async fn ask(&mut self, server: &Server) -> Result<Vec<Notice>> {
        let answer = server.get(PATH, ("Metadata", "true"), WAIT).await?;
        let found: ScheduledEvents =
            serde_json::from_str(answer.success()?).context("the list of scheduled events")?;
        Ok(found.events.iter().filter_map(notice).collect())
    }
}

fn notice(ScheduledEvent { event_type, not_before }: &ScheduledEvent) -> Option<Notice> {
    let (advice, does) = match event_type.as_str() {
        "Preempt" | "Terminate" => (Advice::Stop, "takes this VM away"),
        "Reboot" | "Redeploy" => (Advice::Save, "restarts this VM"),
        "Freeze" => (Advice::Nothing, "pauses this VM for some seconds"),
        _ => return None,
    };
    let when = if not_before.is_empty() { String::new() } else { format!(", not before {not_before}") };
    Some(Notice::new(advice, format!("Azure {does}: {event_type}{when}")))
}
