//! The workers of a job that has several.

use std::time::Duration;

use millstream_control::proto::Worker;

use crate::figures;
use crate::printable::one_line;

/// By how much more of their time the others are in exchanges than the slowest worker, so that it is named.
const SLOWER: f64 = 0.1;

/// A worker's process or host, and its share of time in exchanges or how long the others have waited for it.
pub(crate) fn describe(worker: &Worker) -> String {
    let Worker { pid, host, exchange_fraction, awaited_seconds, awaited_in, .. } = worker;
    let process = pid.map(|pid| format!("process {pid}"));
    let mut parts =
        Vec::from_iter(host.as_ref().map(|host| format!("on host {}", one_line(host))).or(process));
    if let (Some(seconds), Some(exchange)) = (awaited_seconds, awaited_in) {
        let time = figures::duration(Duration::try_from_secs_f64(*seconds).unwrap_or_default());
        parts.push(format!("the others have waited for it for {time}, in {}", one_line(exchange)));
    } else if let Some(fraction) = exchange_fraction {
        parts.push(format!("{} of the time in exchanges", figures::percent(*fraction)));
    }
    parts.join(", ")
}

/// Which worker is slower than the others, if one is clearly so: it is in exchanges for the shortest time, because the others wait
/// there for it.
pub(crate) fn slowest(workers: &[Worker]) -> Option<String> {
    let here = workers.iter().filter(|worker| worker.host.is_none());
    let shares = here.map(|worker| Some((worker.exchange_fraction?, worker.rank)));
    let mut shares = shares.collect::<Option<Vec<_>>>()?;
    shares.sort_by(|(one, _), (other, _)| one.total_cmp(other));
    let [(least, rank), (next, _), ..] = shares[..] else { return None };
    let [least_shown, next_shown] = [least, next].map(figures::percent);
    (next - least > SLOWER).then(|| {
        format!("worker {rank}: {least_shown} of its time in exchanges, the others {next_shown} or more")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workers(shares: &[Option<f64>]) -> Vec<Worker> {
        let worker = |(rank, &exchange_fraction): (u32, &Option<f64>)| Worker {
            rank,
            exchange_fraction,
            ..Worker::default()
        };
        (0..).zip(shares).map(worker).collect()
    }

    #[test]
    fn the_slowest_worker_is_named_if_the_others_wait_clearly_longer() {
        let slowest = |shares: &[Option<f64>]| slowest(&workers(shares));
        let named = slowest(&[Some(0.35), Some(0.02), Some(0.25)]);
        let wanted = "worker 1: 2.0 % of its time in exchanges, the others 25.0 % or more";
        assert_eq!(named.as_deref(), Some(wanted));
        for alike in [
            &[][..],
            &[Some(0.5)],
            &[Some(0.2), Some(0.25)],
            &[Some(0.01), None],
            &[Some(0.0), Some(0.05), Some(0.9)],
        ] {
            assert_eq!(slowest(alike), None, "{alike:?}");
        }
    }
}
