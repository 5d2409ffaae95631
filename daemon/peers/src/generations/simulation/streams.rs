//! Streams from leaders to members: ordered and reliable until they break.

use std::collections::VecDeque;
use std::time::Duration;

use super::world::World;
use super::{ToLeader, ToMember, leader, member};
use crate::HostName;

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Stream {
    pub(super) is_open_at_leader: bool,
    pub(super) is_open_at_member: bool,
    /// What is sent is lost.
    pub(super) is_dead: bool,
    pub(super) down: VecDeque<(Duration, Item<ToMember>)>,
    pub(super) up: VecDeque<(Duration, Item<ToLeader>)>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Item<T> {
    Message(u64, T),
    End,
}

impl World {
    /// When a message sent now arrives: after those before it.
    pub(super) fn arrival(&mut self, leader: usize, member: usize, is_up: bool) -> Duration {
        let slow = self.random.as_mut().is_some_and(|random| random.below(50) == 0);
        let due = match leader == member {
            true => self.now,
            false => self.later(1, if slow { 1500 } else { 20 }),
        };
        let stream = &self.streams[self.pair(leader, member)];
        let last =
            if is_up { stream.up.back().map(|item| item.0) } else { stream.down.back().map(|item| item.0) };
        last.map_or(due, |last| last.max(due))
    }

    pub(super) fn send_down(&mut self, host: usize, to: &HostName, epoch: u64, message: ToMember) {
        let to = self.number(to);
        let due = self.arrival(host, to, false);
        let stream = self.pair(host, to);
        let stream = &mut self.streams[stream];
        if stream.is_open_at_leader && !stream.is_dead {
            stream.down.push_back((due, Item::Message(epoch, message)));
        }
    }

    pub(super) fn close_at_leader(&mut self, host: usize, to: usize) {
        let due = self.arrival(host, to, false);
        let stream = self.pair(host, to);
        let stream = &mut self.streams[stream];
        if std::mem::take(&mut stream.is_open_at_leader) && !stream.is_dead {
            stream.up.clear();
            stream.down.push_back((due, Item::End));
        }
    }

    /// Whether a leader can open a stream now.
    pub(super) fn may_dial(&self, host: usize, to: usize) -> bool {
        let pair = self.pair(host, to);
        let is_up = self.hosts[host].leader.is_some() && self.runs(host) && self.hosts[to].member.is_some();
        let is_cut = self.blocked[pair] || self.blocked[self.pair(to, host)];
        is_up && !is_cut && !self.streams[pair].is_open_at_leader
    }

    pub(super) fn dial(&mut self, host: usize, to: usize) {
        let stream = self.pair(host, to);
        let open = Stream { is_open_at_leader: true, is_open_at_member: true, ..Stream::default() };
        self.streams[stream] = open;
        self.leader_on(host, leader::Event::Opened(self.hosts[to].name.clone()));
    }

    /// Delivers the next message to a member.
    pub(super) fn deliver_down(&mut self, host: usize, to: usize) {
        let stream = self.pair(host, to);
        let stream = &mut self.streams[stream];
        let Some((_, item)) = stream.down.pop_front() else { return };
        if !stream.is_open_at_member {
            return;
        }
        let from = self.hosts[host].name.clone();
        match item {
            Item::Message(epoch, message) => {
                self.member_on(to, member::Event::Message { from, epoch, message });
            }
            Item::End => {
                stream.is_open_at_member = false;
                self.member_on(to, member::Event::Closed(from));
            }
        }
    }

    /// Delivers the next message to a leader.
    pub(super) fn deliver_up(&mut self, host: usize, from: usize) {
        let stream = self.pair(host, from);
        let stream = &mut self.streams[stream];
        let Some((_, item)) = stream.up.pop_front() else { return };
        if !stream.is_open_at_leader {
            return;
        }
        let from = self.hosts[from].name.clone();
        match item {
            Item::Message(epoch, message) => {
                self.leader_on(host, leader::Event::Message { from, epoch, message });
            }
            Item::End => {
                stream.is_open_at_leader = false;
                self.leader_on(host, leader::Event::Closed(from));
            }
        }
    }

    /// Breaks a stream: messages in flight are lost. The leader and the member notice only if the flags say so.
    pub(super) fn break_stream(&mut self, host: usize, to: usize, (at_leader, at_member): (bool, bool)) {
        let now = self.now;
        let stream = self.pair(host, to);
        let stream = &mut self.streams[stream];
        stream.is_dead = true;
        stream.up.clear();
        stream.down.clear();
        if at_leader && stream.is_open_at_leader {
            stream.up.push_back((now, Item::End));
        }
        if at_member && stream.is_open_at_member {
            stream.down.push_back((now, Item::End));
        }
    }
}
