//! AWS: <https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html>.

use std::time::Duration;

use anyhow::Result;
use http::{Method, StatusCode};

use super::server::Server;
use super::{Advice, Notice, PAUSE, Question};

/// Whether a spot VM is interrupted, or likely to be.
#[derive(Default)]
pub(super) struct Interruption {
    /// The token that the server's second version demands; `None` if another is needed.
    token: Option<String>,
}

impl Interruption {
    /// The document at `path`, if there is one.
    async fn document(&mut self, path: &str, server: &Server) -> Result<Option<String>> {
        let token = match self.token.take() {
            Some(token) => token,
            None => {
                let lifetime = ("X-aws-ec2-metadata-token-ttl-seconds", "21600");
                let answer = server.send(Method::PUT, "/latest/api/token", lifetime, Duration::ZERO).await?;
                answer.success()?.to_owned()
            }
        };
        let header = ("X-aws-ec2-metadata-token", token.as_str());
        let answer = server.get(&format!("/latest/meta-data/{path}"), header, Duration::ZERO).await?;
        // The token has expired: the next request takes another.
        if answer.status != StatusCode::UNAUTHORIZED {
            self.token = Some(token);
        }
        match answer.status {
            StatusCode::NOT_FOUND | StatusCode::UNAUTHORIZED => Ok(None),
            _ => Ok(Some(answer.success()?.trim().to_owned())),
        }
    }
}

impl Question for Interruption {
    const PAUSE: Duration = PAUSE;

    async fn ask(&mut self, server: &Server) -> Result<Vec<Notice>> {
        if let Some(action) = self.document("spot/instance-action", server).await? {
            // Nothing else matters any more, nor may a failure of the next request hide it.
            return Ok(vec![Notice::new(Advice::Stop, format!("AWS takes this VM away: {action}"))]);
        }
        let risk = self.document("events/recommendations/rebalance", server).await?;
        let notice = |risk| Notice::new(Advice::Save, format!("AWS may soon take this VM away: {risk}"));
        Ok(risk.map(notice).into_iter().collect())
    }
}
