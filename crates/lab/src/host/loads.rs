//! Writers and readers of frames.

use std::collections::VecDeque;

use weir_limits::{FRAME_LEN_MAX, FRAME_LEN_MIN};

use super::Host;
use super::guest::{NOT_SENT, Program};
use super::parts::{Direction, Event};
use super::parts::{Load, State};

use crate::link::{Content, Frame, Way};
use crate::report::Violation;
use crate::scenario::{Endpoint, LoadKind};
use crate::tcp::{ACK_DELAY_NS, Ack};

/// Time after which a writer whose frame was dropped at its own link goes on (ns).
const RETRY_NS: u64 = 1_000_000;
/// Length of a TCP acknowledgement with timestamps: Ethernet (14), IPv4 (20), TCP (32).
const ACK_BYTES: u32 = 66;

impl Host<'_> {
    pub(super) fn start_load(&mut self, load: usize) {
        match &self.scenario.loads[load].kind {
            LoadKind::Datagrams { .. } if self.pacing_guest(load).is_some() => {
                let now_ns = self.now_ns();
                if let State::Datagrams { gap, due_ns, .. } = &mut self.loads[load].kind {
                    *due_ns = now_ns.saturating_add(gap.draw());
                }
                self.sleep_until_due(load);
            }
            LoadKind::Datagrams { .. } => self.next_datagram(load),
            LoadKind::Requests { outstanding, .. } => {
                for _ in 0..*outstanding {
                    self.think(load);
                }
            }
            LoadKind::Socket { .. } | LoadKind::Stream { .. } => {
                if let Some(turns) = self.turns(load) {
                    turns.push_back(load);
                }
                self.pump(load);
            }
        }
    }

    fn frame(&self, load: usize, way: Way, bytes: u32, content: Content) -> Frame {
        Frame { load, way, bytes, content, number: NOT_SENT, ..Frame::default() }
    }

    pub(super) fn write(&mut self, mut frame: Frame) {
        let now_ns = self.now_ns();
        let Load { next, sent, .. } = &mut self.loads[frame.load];
        let number = &mut next[frame.way as usize];
        (frame.number, frame.sent_ns) = (*number, now_ns);
        *number += 1;
        *sent += 1;
        let load = &self.scenario.loads[frame.load];
        let sender = match frame.way {
            Way::Forth => load.from,
            Way::Back => load.to,
        };
        match sender {
            Endpoint::Guest(guest) => self.program(guest, Program::Send(frame)),
            Endpoint::Peer(uplink) => self.link_send(uplink, Direction::In, frame),
        }
    }

    /// Handles a frame that has reached its reader.
    pub(super) fn read(&mut self, frame: Frame) {
        let now_ns = self.now_ns();
        self.count_read(&frame);
        match frame.content {
            Content::Message => {
                self.loads[frame.load].bytes += u64::from(frame.bytes);
                self.message(&frame);
            }
            Content::Answer(_) => self.think(frame.load),
            Content::Segment(segment) => self.segments(frame.load, &[segment]),
            Content::Ack(upto) => {
                if let State::Stream { sender, .. } = &mut self.loads[frame.load].kind {
                    sender.acked(now_ns, upto);
                }
                self.pump(frame.load);
            }
        }
    }

    /// Handles segments of one load that have reached their reader as one.
    pub(super) fn read_merged(&mut self, run: &[Frame]) {
        let Some(Frame { load, .. }) = run.first() else { return };
        run.iter().for_each(|frame| self.count_read(frame));
        let number = |frame: &Frame| match frame.content {
            Content::Segment(segment) => Some(segment),
            _ => None,
        };
        self.segments(*load, &run.iter().filter_map(number).collect::<Vec<_>>());
    }

    fn count_read(&mut self, frame: &Frame) {
        let now_ns = self.now_ns();
        let state = &mut self.loads[frame.load];
        let before = state.last[frame.way as usize].replace(frame.number);
        state.received += 1;
        match frame.content {
            Content::Answer(asked_ns) => state.latency.record(now_ns - asked_ns),
            _ if frame.way == Way::Back => {}
            _ if matches!(state.kind, State::Requests { .. }) => {}
            _ => state.latency.record(now_ns - frame.sent_ns),
        }
        if let Some(before) = before.filter(|before| *before >= frame.number) {
            let load = self.scenario.loads[frame.load].name.clone();
            self.violated(Violation::Order { now_ns, load, number: frame.number, before });
        }
    }

    pub(super) fn datagram(&mut self, load: usize) {
        if matches!(self.loads[load].kind, State::Socket { .. }) {
            return self.pump(load);
        }
        match self.pacing_guest(load) {
            Some(guest) => self.pace(guest, load),
            None => {
                self.write_datagram(load);
                self.next_datagram(load);
            }
        }
    }

    /// Writes a datagram if the writer's buffer has room, or else lets the writer wait.
    fn write_to_socket(&mut self, load: usize) -> bool {
        let (LoadKind::Socket { bytes, buffer_bytes }, State::Socket { held, waits }) =
            (&self.scenario.loads[load].kind, &mut self.loads[load].kind)
        else {
            return false;
        };
        *waits |= *held >= *buffer_bytes;
        if *waits {
            return false;
        }
        *held = held.saturating_add(truesize(*bytes));
        let dropped = self.loads[load].dropped;
        self.write(self.frame(load, Way::Forth, *bytes, Content::Message));
        if self.loads[load].dropped > dropped {
            self.left_host(load);
            self.calendar.after(RETRY_NS, Event::Datagram(load));
            return false;
        }
        true
    }

    /// Takes a frame that has left its writer's host, or was dropped there, out of the writer's buffer. Returns whether
    /// a writer that waited goes on.
    pub(super) fn left_host(&mut self, load: usize) -> bool {
        let (LoadKind::Socket { bytes, buffer_bytes }, State::Socket { held, waits }) =
            (&self.scenario.loads[load].kind, &mut self.loads[load].kind)
        else {
            return false;
        };
        *held = held.saturating_sub(truesize(*bytes));
        let waited = std::mem::replace(waits, *waits && *held > buffer_bytes / 2);
        waited && !*waits
    }

    /// Returns the guest whose thread sends a load's datagrams by its own timer.
    fn pacing_guest(&self, load: usize) -> Option<usize> {
        match self.scenario.loads[load].from {
            Endpoint::Guest(guest) if self.scenario.realization.guests_are_threads => Some(guest),
            _ => None,
        }
    }

    /// Writes up to `most` due datagrams. Returns their number.
    pub(super) fn due_datagrams(&mut self, load: usize, most: u32) -> u32 {
        let now_ns = self.now_ns();
        for written in 0..most {
            let State::Datagrams { gap, due_ns, .. } = &mut self.loads[load].kind else { return 0 };
            if *due_ns > now_ns {
                return written;
            }
            *due_ns = due_ns.saturating_add(gap.draw().max(1));
            self.write_datagram(load);
        }
        most
    }

    /// Returns the due time of the next datagram of a sender with a rate (ns).
    pub(super) fn next_due_ns(&self, load: usize) -> Option<u64> {
        match self.loads[load].kind {
            State::Datagrams { due_ns, .. } => Some(due_ns),
            _ => None,
        }
    }

    /// Sets the timer of a sender for its next datagram.
    pub(super) fn sleep_until_due(&mut self, load: usize) {
        let Some(due_ns) = self.next_due_ns(load) else { return };
        let at_ns = due_ns.saturating_add(self.delays.timer_late_ns());
        self.calendar.at(at_ns.max(self.now_ns()), Event::Datagram(load));
    }

    fn write_datagram(&mut self, load: usize) {
        let State::Datagrams { bytes, .. } = &mut self.loads[load].kind else { return };
        let range = u64::from(FRAME_LEN_MIN)..=u64::from(FRAME_LEN_MAX);
        let bytes = bytes.draw().clamp(*range.start(), *range.end()) as u32; // a frame's length
        self.write(self.frame(load, Way::Forth, bytes, Content::Message));
    }

    fn next_datagram(&mut self, load: usize) {
        let State::Datagrams { gap, .. } = &mut self.loads[load].kind else { return };
        let mut at_ns = self.calendar.now_ns().saturating_add(gap.draw());
        if let LoadKind::Datagrams { on_off: Some(on_off), .. } = &self.scenario.loads[load].kind {
            let period_ns = on_off.on_ns + on_off.off_ns;
            let phase_ns = at_ns % period_ns;
            if phase_ns >= on_off.on_ns {
                at_ns = (at_ns - phase_ns).saturating_add(period_ns);
            }
        }
        self.calendar.at(at_ns, Event::Datagram(load));
    }

    /// Lets a client think before its next request.
    fn think(&mut self, load: usize) {
        let State::Requests { think } = &mut self.loads[load].kind else { return };
        let ns = think.draw();
        self.calendar.after(ns, Event::Request(load));
    }

    pub(super) fn request(&mut self, load: usize) {
        if let LoadKind::Requests { request_bytes, .. } = &self.scenario.loads[load].kind {
            let request = self.frame(load, Way::Forth, *request_bytes, Content::Message);
            match self.scenario.loads[load].from {
                // The clock of a client in a guest starts when the client has its CPU.
                Endpoint::Guest(guest) => self.program(guest, Program::Serve(0, request)),
                Endpoint::Peer(_) => self.write(request),
            }
        }
    }

    /// Handles a datagram or a request that has been read.
    fn message(&mut self, request: &Frame) {
        let spec = &self.scenario.loads[request.load];
        let LoadKind::Requests { answer_bytes, serve_ns, .. } = spec.kind else { return };
        let content = Content::Answer(request.sent_ns);
        let answer = self.frame(request.load, Way::Back, answer_bytes, content);
        match spec.to {
            Endpoint::Guest(guest) => self.program(guest, Program::Serve(serve_ns, answer)),
            Endpoint::Peer(_) => self.write(answer),
        }
    }

    /// Returns the streams or sockets that share a client's thread with this one.
    fn turns(&mut self, load: usize) -> Option<&mut VecDeque<usize>> {
        let Endpoint::Peer(uplink) = self.scenario.loads[load].from else { return None };
        let turns = &mut self.uplinks[uplink].turns;
        let thread = load / self.scenario.uplinks.len() % turns.len().max(1);
        turns.get_mut(thread)
    }

    /// Sends as much as windows and buffers allow: of this stream or socket, or of all that share its client's thread, in
    /// turn.
    pub(super) fn pump(&mut self, load: usize) {
        while self.repeats(load) && self.send_segment(load) {}
        loop {
            let next = self.turns(load).and_then(|turns| turns.front().copied());
            let next = next.unwrap_or(load);
            if !self.send_segment(next) && !self.write_to_socket(next) {
                return;
            }
            if let Some(turns) = self.turns(load) {
                turns.rotate_left(1);
            }
        }
    }

    fn repeats(&self, load: usize) -> bool {
        matches!(&self.loads[load].kind, State::Stream { sender, .. } if sender.repeats())
    }

    /// Sends a segment if the windows allow it, and keeps the timer.
    fn send_segment(&mut self, load: usize) -> bool {
        let now_ns = self.now_ns();
        let LoadKind::Stream { segment_bytes, .. } = self.scenario.loads[load].kind else {
            return false;
        };
        let State::Stream { sender, .. } = &mut self.loads[load].kind else { return false };
        let segment = sender.send(now_ns);
        self.keep_timer(load);
        let Some(segment) = segment else { return false };
        self.write(self.frame(load, Way::Forth, segment_bytes, Content::Segment(segment)));
        true
    }

    fn keep_timer(&mut self, load: usize) {
        let State::Stream { sender, resend_ns, .. } = &mut self.loads[load].kind else { return };
        let Some(timer_ns) = sender.timer_ns() else { return };
        if resend_ns.is_none_or(|set_ns| timer_ns < set_ns) {
            *resend_ns = Some(timer_ns);
            self.calendar.at(timer_ns, Event::Resend(load));
        }
    }

    pub(super) fn resend(&mut self, load: usize) {
        let now_ns = self.now_ns();
        let State::Stream { sender, resend_ns, .. } = &mut self.loads[load].kind else { return };
        if resend_ns.is_some_and(|set_ns| set_ns <= now_ns) {
            *resend_ns = None;
            sender.timed_out(now_ns);
            self.pump(load);
        }
    }

    /// Handles segments that have been read as one. They are acknowledged together.
    fn segments(&mut self, load: usize, segments: &[u64]) {
        let now_ns = self.now_ns();
        let LoadKind::Stream { segment_bytes, .. } = self.scenario.loads[load].kind else { return };
        let Load { bytes, kind, .. } = &mut self.loads[load];
        let State::Stream { receiver, ack_ns, ack_timer, .. } = kind else { return };
        let before = receiver.expected();
        let mut when = Ack::Later;
        for segment in segments {
            if receiver.segment(*segment) == Ack::Now {
                when = Ack::Now;
            }
        }
        *bytes += (receiver.expected() - before) * u64::from(segment_bytes);
        match when {
            Ack::Now => self.ack(load),
            Ack::Later => {
                *ack_ns = now_ns + ACK_DELAY_NS;
                if !std::mem::replace(ack_timer, true) {
                    self.calendar.at(*ack_ns, Event::DelayedAck(load));
                }
            }
        }
    }

    pub(super) fn delayed_ack(&mut self, load: usize) {
        let now_ns = self.now_ns();
        let State::Stream { receiver, ack_ns, ack_timer, .. } = &mut self.loads[load].kind else {
            return;
        };
        *ack_timer = false;
        if !receiver.owes() {
            return;
        }
        if *ack_ns <= now_ns {
            self.ack(load);
        } else {
            *ack_timer = true;
            self.calendar.at(*ack_ns, Event::DelayedAck(load));
        }
    }

    fn ack(&mut self, load: usize) {
        let State::Stream { receiver, .. } = &mut self.loads[load].kind else { return };
        let upto = receiver.ack();
        self.write(self.frame(load, Way::Back, ACK_BYTES, Content::Ack(upto)));
    }
}

/// Returns what a frame counts in its writer's buffer (bytes; Linux 2.6: `skb->truesize`): the packet with room for its
/// headers, in lines of cache, and its descriptor.
fn truesize(bytes: u32) -> u32 {
    const HEADROOM_BYTES: u32 = 16 + 15 - 14;
    const LINE_BYTES: u32 = 64;
    const SK_BUFF_BYTES: u32 = 232;
    (bytes + HEADROOM_BYTES).next_multiple_of(LINE_BYTES) + SK_BUFF_BYTES
}
