//! The etcd cluster of the site: which of its members answer, and how fast.

use std::time::{Duration, Instant};

use futures::future::join_all;
use millstream_peers::etcd::{Endpoint, Etcd, EtcdError, EtcdSpec};

use super::finding::Finding;

const CHECK: &str = "etcd";

/// Slower members delay commits of checkpoints, and renewals of leases.
const SLOW: Duration = Duration::from_millis(500);

/// What a member has answered: within which time, or why not.
struct Answer {
    member: String,
    result: Result<Duration, EtcdError>,
}

/// What was found out about the members of the cluster.
pub(super) async fn findings(spec: &EtcdSpec) -> Vec<Finding> {
    let ask = |endpoint: &Endpoint| {
        let endpoints = vec![endpoint.clone()];
        let etcd = Etcd::new(EtcdSpec { endpoints, retry: Duration::ZERO, ..spec.clone() });
        let member = endpoint.to_string();
        async move {
            // The second request goes over the connection that the first one makes.
            let first = etcd.get(&etcd.key("doctor")).await;
            let began = Instant::now();
            let result = match first {
                Ok(_) => etcd.get(&etcd.key("doctor")).await.map(|_| began.elapsed()),
                Err(error) => Err(error),
            };
            Answer { member, result }
        }
    };
    judge(&join_all(spec.endpoints.iter().map(ask)).await)
}

fn judge(answers: &[Answer]) -> Vec<Finding> {
    let times: Vec<_> = answers.iter().filter_map(|answer| answer.result.as_ref().ok().copied()).collect();
    let problem = |Answer { member, result }: &Answer| match result {
        Err(error) => {
            let advice = "correct [etcd] of the configuration, or start the member";
            let found = error.to_string();
            Some(match times.is_empty() {
                true => Finding::fail(CHECK, found, advice),
                false => Finding::warn(CHECK, found, advice),
            })
        }
        Ok(time) if *time > SLOW => {
            let found = format!("{member} answers within {:.0} ms", time.as_secs_f64() * 1e3);
            Some(Finding::warn(CHECK, found, "see `etcdctl endpoint status`, and the latency of its disk"))
        }
        Ok(_) => None,
    };
    let mut findings: Vec<_> = answers.iter().filter_map(problem).collect();
    if findings.is_empty() {
        let slowest = times.iter().max().copied().unwrap_or_default();
        let members = if answers.len() == 1 { "the member answers" } else { "all members answer" };
        let found = format!("{members} within {:.1} ms", slowest.as_secs_f64() * 1e3);
        findings.push(Finding::ok(CHECK, found));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::super::finding::Mark;
    use super::*;

    fn judged(results: &[Option<u64>]) -> Vec<(Mark, String)> {
        let answer = |(number, milliseconds): (usize, &Option<u64>)| {
            let member = format!("http://etcd-{number}:2379");
            let error = EtcdError::Unreachable(format!("{member}: connection refused"));
            Answer { result: milliseconds.map(Duration::from_millis).ok_or(error), member }
        };
        let answers: Vec<_> = results.iter().enumerate().map(answer).collect();
        judge(&answers).into_iter().map(|finding| (finding.mark, finding.found)).collect()
    }

    #[test]
    fn members_that_fail_are_named() {
        let down = |number| format!("etcd does not answer: http://etcd-{number}:2379: connection refused");
        assert_eq!(judged(&[Some(2), Some(3)]), [(Mark::Ok, "all members answer within 3.0 ms".to_owned())]);
        assert_eq!(judged(&[Some(2)]), [(Mark::Ok, "the member answers within 2.0 ms".to_owned())]);
        assert_eq!(judged(&[Some(2), None]), [(Mark::Warn, down(1))]);
        assert_eq!(judged(&[None, None]), [(Mark::Fail, down(0)), (Mark::Fail, down(1))]);
        let slow = "http://etcd-0:2379 answers within 900 ms".to_owned();
        assert_eq!(judged(&[Some(900), Some(1)]), [(Mark::Warn, slow)]);
    }
}
