//! `millstream peers`: lists the daemons of other hosts and measures the links to them; creates certificates for them.

use std::time::Duration;

use millstream_control::proto::{MeasurePeersRequest, Peer, PeerMeasurement, PeersReply};
use millstream_peers::authority::{Authority, AuthorityError};
use serde_json::json;

use crate::arguments::{InitCa, Issue, Peers, PeersCommand, Revoke};
use crate::connection::to_daemon;
use crate::context::Context;
use crate::failure::Failure;
use crate::figures;
use crate::printable::printable;
use crate::screen::output_width;
use crate::table::Table;

/// Columns that a narrow terminal does without, the first one first.
const EXPENDABLE: [&str; 5] = ["CPUS", "CLOCK", "ROUND TRIP", "DEVICES", "VERSION"];

pub(crate) fn run(arguments: Peers, context: &Context) -> Result<(), Failure> {
    let Peers { command, measure, connections, seconds } = arguments;
    if command.is_some() && measure.is_some() {
        return Err(Failure::Usage("--measure cannot be used with a command of `peers`".to_owned()));
    }
    match (command, measure) {
        (Some(PeersCommand::InitCa(arguments)), _) => init_ca(&arguments, context),
        (Some(PeersCommand::Issue(arguments)), _) => issue(&arguments, context),
        (Some(PeersCommand::Revoke(arguments)), _) => revoke(&arguments, context),
        (None, None) => super::on_runtime(list(context)),
        (None, Some(hosts)) => {
            let request = MeasurePeersRequest { hosts, connections, milliseconds: seconds * 1000 };
            super::on_runtime(measure_links(request, context))
        }
    }
}

async fn list(context: &Context) -> Result<(), Failure> {
    let reply = to_daemon(context).await?.peers().await?;
    if reply.refused_connections > 0 {
        let refused = figures::counted(reply.refused_connections, "connection");
        context.screen.note(&format!("refused {refused} since the daemon started; its log has the reasons"));
    }
    context.answer(&reply, || table(&reply, output_width()))
}

/// The hosts, for a terminal of this width.
fn table(PeersReply { this_host, peers, .. }: &PeersReply, width: Option<usize>) -> String {
    let mut table = Table::with_titles(&[
        "HOST",
        "ADDRESS",
        "STATE",
        "VERSION",
        ">CPUS",
        "DEVICES",
        ">JOBS",
        ">ROWS/S",
        ">WAIT",
        ">ROUND TRIP",
        ">CLOCK",
        "PROBLEM",
    ]);
    let own = this_host.iter().map(|host| (host, " (this host)"));
    for (peer, mark) in own.chain(peers.iter().map(|peer| (peer, ""))) {
        let name = if peer.name.is_empty() { "-" } else { &peer.name };
        let since = figures::age(Duration::from_secs_f64(peer.state_seconds.max(0.0)));
        let mut cells = vec![
            format!("{}{mark}", printable(name)),
            printable(&peer.address).into_owned(),
            format!("{} {since}", peer.state),
        ];
        cells.extend(if peer.state == "up" { activity(peer) } else { vec!["-".to_owned(); 8] });
        cells.push(printable(&peer.reason).into_owned());
        table.cells(cells);
    }
    table.fitted(width, &EXPENDABLE).render()
}

/// The cells of a host that is up.
fn activity(peer: &Peer) -> Vec<String> {
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let seconds = |seconds: f64| Duration::from_secs_f64(seconds.max(0.0));
    let clock = peer.clock_offset_seconds.map(|offset| {
        let error = peer.clock_error_seconds.unwrap_or_default();
        format!("{} ± {}", signed_ms(offset), figures::short_time(seconds(error)))
    });
    vec![
        printable(&peer.version).into_owned(),
        peer.cpus.to_string(),
        devices(&peer.gpus),
        figures::count(peer.jobs.into()),
        or_dash((peer.jobs > 0).then(|| figures::rate(peer.examples_per_second))),
        or_dash(peer.wait_fraction.map(figures::percent)),
        or_dash(peer.round_trip_seconds.map(|time| figures::short_time(seconds(time)))),
        or_dash(clock),
    ]
}

/// The GPUs: `8 x NVIDIA H100`.
fn devices(gpus: &[String]) -> String {
    let mut kinds: Vec<(&str, usize)> = Vec::new();
    for gpu in gpus {
        match kinds.iter_mut().find(|(name, _)| name == gpu) {
            Some((_, count)) => *count += 1,
            None => kinds.push((gpu, 1)),
        }
    }
    let kinds: Vec<_> =
        kinds.into_iter().map(|(name, count)| format!("{count} x {}", printable(name))).collect();
    if kinds.is_empty() { "CPU".to_owned() } else { kinds.join(", ") }
}

fn signed_ms(seconds: f64) -> String {
    format!("{:+.2} ms", seconds * 1e3)
}

async fn measure_links(request: MeasurePeersRequest, context: &Context) -> Result<(), Failure> {
    let mut client = to_daemon(context).await?;
    let mut replies = client.measure_peers(request).await?;
    let mut measured = Vec::new();
    while let Some(measurement) = replies.next().await? {
        let PeerMeasurement { name, address, .. } = &measurement;
        context.screen.note(&format!("measured {} at {}", printable(name), printable(address)));
        measured.push(measurement);
    }
    context.answer(&json!({ "peers": measured }), || measurements(&measured))?;
    if measured.is_empty() {
        context.screen.note("no other host is up");
    }
    let failed = measured.iter().filter(|measurement| !measurement.error.is_empty()).count();
    match failed {
        0 => Ok(()),
        failed => Err(Failure::from(anyhow::anyhow!(
            "cannot measure {failed} of {} links; see the column PROBLEM",
            measured.len()
        ))),
    }
}

/// The measured links.
fn measurements(measured: &[PeerMeasurement]) -> String {
    let mut table = Table::with_titles(&["HOST", "ADDRESS", ">ROUND TRIP", ">SENT", ">RECEIVED", "PROBLEM"]);
    for link in measured {
        let rate = |bytes: f64| format!("{}/s", figures::bytes(bytes as u64));
        let figures = if link.error.is_empty() {
            let round_trip = figures::short_time(Duration::from_secs_f64(link.round_trip_seconds.max(0.0)));
            [round_trip, rate(link.sent_bytes_per_second), rate(link.received_bytes_per_second)]
        } else {
            [(); 3].map(|()| "-".to_owned())
        };
        let cells = [printable(&link.name), printable(&link.address)].map(String::from);
        let problem = printable(&link.error).into_owned();
        table.cells([&cells[..], &figures, &[problem]].concat());
    }
    table.render()
}

fn init_ca(InitCa { dir, days }: &InitCa, context: &Context) -> Result<(), Failure> {
    let authority = Authority::create(dir, *days).map_err(failure)?;
    let (certificate, revoked) = (authority.certificate(), authority.revoked());
    let files = json!({ "ca": certificate, "crl": revoked });
    context.answer(&files, || {
        format!(
            "created an authority in {}\nfor every host: {} and {}\n",
            dir.display(),
            certificate.display(),
            revoked.display()
        )
    })
}

fn issue(Issue { names, ca, out, days }: &Issue, context: &Context) -> Result<(), Failure> {
    let authority = Authority::open(ca).map_err(failure)?;
    let mut issued = Vec::new();
    for name in names {
        issued.push((name, authority.issue(name, *days, out).map_err(failure)?));
    }
    let entries: Vec<_> = issued
        .iter()
        .map(|(name, files)| json!({ "name": name, "certificate": files.certificate, "key": files.key }))
        .collect();
    context.answer(&json!({ "issued": entries }), || {
        let line = |(name, files): &(&String, millstream_peers::authority::IssuedFiles)| {
            format!("{name}: {} and {}\n", files.certificate.display(), files.key.display())
        };
        issued.iter().map(line).collect()
    })
}

fn revoke(Revoke { names, ca }: &Revoke, context: &Context) -> Result<(), Failure> {
    let authority = Authority::open(ca).map_err(failure)?;
    let mut revoked = Vec::new();
    for name in names {
        revoked.push((name, authority.revoke(name).map_err(failure)?));
    }
    let entries: Vec<_> =
        revoked.iter().map(|(name, count)| json!({ "name": name, "revoked": count })).collect();
    let list = authority.revoked();
    context.answer(&json!({ "crl": list, "names": entries }), || {
        let line = |(name, count): &(&String, usize)| match count {
            0 => format!("{name}: already revoked\n"),
            count => format!("{name}: revoked {}\n", figures::counted(*count as u64, "certificate")),
        };
        let lines: String = revoked.iter().map(line).collect();
        format!("{lines}for every host: {}\n", list.display())
    })
}

fn failure(error: AuthorityError) -> Failure {
    Failure::from(anyhow::Error::from(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_a_table() {
        let this = Peer {
            name: "train-1".into(),
            address: "train-1:7420".into(),
            state: "up".into(),
            state_seconds: 7_200.0,
            version: "0.1.0".into(),
            gpus: vec!["NVIDIA H100".into(); 8],
            cpus: 96,
            ..Peer::default()
        };
        let other = Peer {
            name: "train-2".into(),
            address: "10.0.0.2:7420".into(),
            jobs: 1,
            examples_per_second: 1_234_567.0,
            wait_fraction: Some(0.031),
            round_trip_seconds: Some(0.0002),
            clock_offset_seconds: Some(-0.0015),
            clock_error_seconds: Some(0.0001),
            gpus: Vec::new(),
            ..this.clone()
        };
        let down = Peer {
            name: String::new(),
            address: "10.0.0.3:7420".into(),
            state: "down".into(),
            reason: "cannot connect: Connection \u{1b}refused".into(),
            ..Peer::default()
        };
        let reply = PeersReply { this_host: Some(this), peers: vec![other, down], refused_connections: 0 };
        let lines: Vec<_> = table(&reply, None).lines().map(str::to_owned).collect();
        let words = |line: usize| lines[line].split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(
            words(1).starts_with("train-1 (this host) train-1:7420 up 2h 0.1.0 96 8 x NVIDIA H100 0 - -"),
            "{lines:#?}"
        );
        assert!(words(2).contains("CPU 1 1,234,567 3.1 %"), "{lines:#?}");
        assert!(words(2).contains("200 us -1.50 ms ± 100 us"), "{lines:#?}");
        assert!(
            words(3).starts_with("- 10.0.0.3:7420 down 0s - -") && !lines[3].contains('\u{1b}'),
            "{lines:#?}"
        );
        let narrow = table(&reply, Some(100));
        assert!(!narrow.contains("CPUS") && narrow.contains("VERSION"), "{narrow}");
    }

    #[test]
    fn links_are_a_table() {
        let good = PeerMeasurement {
            name: "b".into(),
            address: "b:1".into(),
            round_trip_seconds: 0.001,
            sent_bytes_per_second: 1e9,
            received_bytes_per_second: 2e9,
            ..PeerMeasurement::default()
        };
        let bad =
            PeerMeasurement { name: "c".into(), error: "no answer".into(), ..PeerMeasurement::default() };
        let text = measurements(&[good, bad]);
        assert!(text.contains("MiB/s") || text.contains("MB/s") || text.contains("GB/s"), "{text}");
        assert!(
            text.lines().nth(2).is_some_and(|line| line.contains("no answer") && line.contains('-')),
            "{text}"
        );
    }
}
