//! The ranks of a run gather until all have attached.

use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use super::{Host, Member, refuse, session};
use crate::error::named;

/// How often the ranks that wait are checked.
const CHECK: Duration = Duration::from_millis(50);

/// Gathers the run of `first` with those that arrive at `others`, and runs its session.
pub(super) fn run(host: &Host, first: Member, others: Receiver<Member>) {
    let run = first.run();
    let members = gather(host, first, &others);
    for late in host.end_gathering(&run, &others) {
        host.join(late);
    }
    drop(others);
    if let Some(members) = members {
        session::run(host, members);
    }
}

/// All ranks of this host, in order. `None` if they do not fit together, one is missing after the host's patience, all are
/// gone, or the host ends.
fn gather(host: &Host, first: Member, others: &Receiver<Member>) -> Option<Vec<Member>> {
    let (began, patience) = (Instant::now(), host.0.patience);
    let (world, here) = (first.attach.world, first.attach.local_world);
    let mut members = vec![first];
    while members.len() < here as usize {
        let member = others.recv_timeout(CHECK).ok();
        members.retain(|member| !member.is_gone());
        if let Some(member) = member {
            if let Err(message) = fits(&members, &member) {
                members.push(member);
                members.iter().for_each(|member| refuse(&member.socket, &message));
                return None;
            }
            members.push(member);
        }
        if members.is_empty() {
            return None;
        }
        let end = host.end().map(|end| end.to_string());
        let end =
            end.or_else(|| (began.elapsed() > patience).then(|| missing(&members, (world, here), patience)));
        if let Some(message) = end {
            members.iter().for_each(|member| refuse(&member.socket, &message));
            return None;
        }
    }
    members.sort_by_key(Member::rank);
    Some(members)
}

/// Checks that `member` asks for the same feed as the others.
fn fits(members: &[Member], member: &Member) -> Result<(), String> {
    let Some(first) = members.first() else { return Ok(()) };
    let (one, other) = (&first.attach, &member.attach);
    let (rank, of_first) = (other.rank, one.rank);
    if one.world != other.world {
        return Err(format!("rank {rank} is of {} ranks, rank {of_first} of {}", other.world, one.world));
    }
    if one.local_world != other.local_world {
        return Err(format!(
            "rank {rank} is one of {} ranks on this machine, rank {of_first} one of {}",
            other.local_world, one.local_world
        ));
    }
    if members.iter().any(|present| present.rank() == rank) {
        return Err(format!(
            "two processes are rank {rank} of run `{}`; give each program another `run`",
            one.run
        ));
    }
    if one.feed != other.feed {
        let lines = one.feed.lines().zip(other.feed.lines()).find(|(one, other)| one != other);
        let differ = lines.map_or_else(
            || "one has more lines".to_owned(),
            |(one, other)| format!("`{other}` instead of `{one}`"),
        );
        return Err(format!("rank {rank} asks for another feed than rank {of_first}: {differ}"));
    }
    if one.shard.is_some() != other.shard.is_some() {
        return Err(format!("of rank {rank} and rank {of_first}, only one asks for a shard of the data"));
    }
    if one.shard != other.shard {
        return Err(format!(
            "rank {rank} and rank {of_first} differ in MASTER_ADDR, MILLSTREAM_SHARD_ADDRESS or MILLSTREAM_SHARD_PORTS"
        ));
    }
    if one.state != other.state {
        return Err(format!("rank {rank} resumes from another state than rank {of_first}"));
    }
    Ok(())
}

/// Says which of `here` ranks of this host are missing, of `world` ranks of all hosts.
fn missing(members: &[Member], (world, here): (u32, u32), patience: Duration) -> String {
    let seconds = patience.as_secs();
    if here < world {
        let present = named(&members.iter().map(Member::rank).collect::<Vec<_>>());
        return format!(
            "{} of the {here} ranks on this machine attached within {seconds} s of the first one: {present}",
            members.len()
        );
    }
    let missing = (0..world).filter(|&rank| members.iter().all(|member| member.rank() != rank));
    let missing = named(&missing.collect::<Vec<_>>());
    format!(
        "{missing} of {world} did not attach within {seconds} s of the first one; if they are on other machines, \
         the loader needs local_world, the number of ranks on this one"
    )
}
