//! DNS over TCP (RFC 7766): an endpoint of TCP (RFC 9293) that takes connections of guests, and opens none.
//!
//! An interface has few connections. Each lasts as long as there are questions, and has few of them. Bytes that a guest
//! does not acknowledge are sent again, all at once, a few times.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use rustix::rand::{GetRandomFlags, getrandom};
use weir_fabric::PortId;
use weir_limits::{
    DNS_STREAM_ANSWERS_BYTES_MAX, DNS_STREAM_QUESTION_BYTES_MAX, DNS_STREAM_QUESTIONS_MAX,
    DNS_STREAM_SECS, DNS_STREAMS_MAX, DNS_STREAMS_PER_VIF_MAX,
};
use weir_wire::layers::TCP_HEADER_LEN_MIN;

use crate::frame::Way;

#[cfg(test)]
pub(crate) mod tests;

/// The flags of a segment (RFC 9293 §3.1).
const FIN: u8 = 1;
const SYN: u8 = 2;
const RST: u8 = 4;
const PSH: u8 = 8;
const ACK: u8 = 16;
/// The kinds of options: the end of the list, a gap, and the maximum segment size (RFC 9293 §3.2).
const END: u8 = 0;
const GAP: u8 = 1;
const MSS: u8 = 2;
/// The longest segments: those that any station takes, and those that any network of IPv6 carries.
const MSS_MIN: u16 = 536;
const MSS_MAX: u16 = 1_220;
/// The bytes that give a message its length (RFC 1035 §4.2.2).
pub(crate) const MESSAGE_LENGTH: usize = 2;
/// The bytes of questions that weir takes beyond those that it has acknowledged.
const WINDOW: u16 = (MESSAGE_LENGTH + DNS_STREAM_QUESTION_BYTES_MAX) as u16;

const LIFE: Duration = Duration::from_secs(DNS_STREAM_SECS);
/// The time until bytes are sent again, and how often that happens.
const REPEATS_AFTER: Duration = Duration::from_millis(500);
const REPEATS: u8 = 5;

/// A connection of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct StreamId {
    ends: Ends,
    /// Distinguishes successive connections with the same ends.
    number: u64,
}

/// The two ends of a connection, and the port that the guest is behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Ends {
    from: PortId,
    guest: SocketAddr,
    own: SocketAddr,
}

/// A segment of a guest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Segment<'s> {
    seq: u32,
    ack: u32,
    flags: u8,
    window: u16,
    mss: Option<u16>,
    payload: &'s [u8],
}

impl<'s> Segment<'s> {
    /// Reads a segment with its header; `None` if it has none.
    fn read(bytes: &'s [u8]) -> Option<Self> {
        let number = |at: usize| bytes.get(at..at + 4)?.try_into().map(u32::from_be_bytes).ok();
        let header_len = usize::from(bytes.get(12)? >> 4) * 4;
        let options = bytes.get(usize::from(TCP_HEADER_LEN_MIN)..header_len)?;
        Some(Self {
            seq: number(4)?,
            ack: number(8)?,
            flags: *bytes.get(13)?,
            window: bytes.get(14..16)?.try_into().map(u16::from_be_bytes).ok()?,
            mss: mss_of(options),
            payload: bytes.get(header_len..)?,
        })
    }

    fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// The length of the segment in sequence numbers.
    fn len(&self) -> u32 {
        self.payload.len() as u32 + u32::from(self.has(SYN)) + u32::from(self.has(FIN))
    }
}

/// The maximum segment size among options.
fn mss_of(mut options: &[u8]) -> Option<u16> {
    loop {
        options = match options {
            [END, ..] | [] => return None,
            [GAP, rest @ ..] => rest,
            [MSS, 4, high, low, ..] => return Some(u16::from_be_bytes([*high, *low])),
            [_, len, ..] if *len >= 2 => options.get(usize::from(*len)..)?,
            _ => return None,
        };
    }
}

#[derive(Debug)]
struct Connection {
    number: u64,
    way: Way,
    /// The number of the guest's first segment.
    first: u32,
    /// The next byte of the guest.
    next: u32,
    /// The first byte that the guest has not acknowledged.
    unacknowledged: u32,
    /// The bytes from there on, and how many of them are sent.
    output: Vec<u8>,
    sent: usize,
    /// The guest has acknowledged the handshake.
    is_open: bool,
    has_sent_fin: bool,
    /// The guest sends nothing more.
    has_ended: bool,
    mss: usize,
    window: usize,
    /// The bytes of a question that is not complete yet.
    input: Vec<u8>,
    /// Questions in all, and those without an answer.
    asked: usize,
    waiting: usize,
    until: Instant,
    repeats_at: Option<Instant>,
    repeats: u8,
}

/// Frames for guests, each with the port that the guest is behind.
type Frames = Vec<(PortId, Vec<u8>)>;

/// The connections of a network.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    all: HashMap<Ends, Connection>,
    number: u64,
    /// Connections that were refused because of a bound, since the last reading.
    pub(crate) refused: u64,
}

impl Streams {
    /// Takes a segment that begins with its header, and returns the questions that are now
    /// complete. `way` leads to the guest behind the port `from`.
    pub(crate) fn take(
        &mut self,
        from: PortId,
        way: Way,
        segment: &[u8],
        now: Instant,
        frames: &mut Frames,
    ) -> Vec<(StreamId, Vec<u8>)> {
        let Some(segment) = Segment::read(segment) else { return Vec::new() };
        let ends = Ends { from, guest: way.to, own: way.from };
        let is_new = segment.flags & (SYN | ACK | RST) == SYN;
        if is_new && self.all.get(&ends).is_none_or(|it| it.first != segment.seq) {
            self.all.remove(&ends);
            match self.has_room(from) {
                true => self.open(ends, way, &segment, now, frames),
                false => {
                    self.refused += 1;
                    frames.extend(reset(from, &way, &segment));
                }
            }
            return Vec::new();
        }
        let Some(connection) = self.all.get_mut(&ends) else {
            if !segment.has(RST) {
                frames.extend(reset(from, &way, &segment));
            }
            return Vec::new();
        };
        let id = StreamId { ends, number: connection.number };
        match connection.take(&segment, now) {
            Taken::Goes(questions) => {
                let answers_at_once = !segment.payload.is_empty()
                    || segment.has(SYN | FIN)
                    || segment.seq != connection.next;
                connection.send(from, now, answers_at_once, frames);
                questions.into_iter().map(|question| (id, question)).collect()
            }
            Taken::Ends => {
                self.all.remove(&ends);
                Vec::new()
            }
            Taken::Refused => {
                self.refused += 1;
                self.all.remove(&ends);
                frames.extend(reset(from, &way, &segment));
                Vec::new()
            }
        }
    }

    /// Sends an answer. An empty answer sends nothing: the connection only has one question less to wait for.
    pub(crate) fn answer(
        &mut self,
        id: StreamId,
        answer: &[u8],
        now: Instant,
        frames: &mut Frames,
    ) {
        let own = |it: &&mut Connection| it.number == id.number;
        let Some(connection) = self.all.get_mut(&id.ends).filter(own) else { return };
        connection.waiting = connection.waiting.saturating_sub(1);
        if let Ok(len) = u16::try_from(answer.len())
            && len > 0
        {
            connection.output.extend(len.to_be_bytes());
            connection.output.extend(answer);
        }
        if connection.output.len() > DNS_STREAM_ANSWERS_BYTES_MAX {
            self.refused += 1;
            frames.extend(connection.frame(id.ends.from, RST | ACK, connection.end(), &[]));
            self.all.remove(&id.ends);
            return;
        }
        connection.send(id.ends.from, now, false, frames);
    }

    /// The time at which something is sent again or ends.
    pub(crate) fn due(&self) -> Option<Instant> {
        let of = |it: &Connection| it.repeats_at.map_or(it.until, |at| at.min(it.until));
        self.all.values().map(of).min()
    }

    /// Sends again what guests have not acknowledged, and ends connections whose time is over.
    pub(crate) fn look(&mut self, now: Instant, frames: &mut Frames) {
        self.all.retain(|Ends { from, .. }, connection| {
            let repeats = connection.repeats_at.is_some_and(|at| now >= at);
            if now >= connection.until || repeats && connection.repeats == REPEATS {
                frames.extend(connection.frame(*from, RST | ACK, connection.end(), &[]));
                return false;
            }
            if repeats {
                connection.repeats += 1;
                connection.repeats_at = None;
                (connection.sent, connection.has_sent_fin) = (0, false);
                connection.send(*from, now, !connection.is_open, frames);
            }
            true
        });
    }

    fn has_room(&self, from: PortId) -> bool {
        let own = self.all.keys().filter(|ends| ends.from == from).count();
        // The first one of each guest is taken even if the limit for all is reached.
        own == 0 || own < DNS_STREAMS_PER_VIF_MAX && self.all.len() < DNS_STREAMS_MAX
    }

    fn open(
        &mut self,
        ends: Ends,
        way: Way,
        segment: &Segment<'_>,
        now: Instant,
        frames: &mut Frames,
    ) {
        self.number += 1;
        let mut connection = Connection {
            number: self.number,
            way,
            first: segment.seq,
            next: segment.seq.wrapping_add(1),
            unacknowledged: random(),
            output: Vec::new(),
            sent: 0,
            is_open: false,
            has_sent_fin: false,
            has_ended: false,
            mss: segment.mss.unwrap_or(MSS_MIN).clamp(MSS_MIN, MSS_MAX).into(),
            window: segment.window.into(),
            input: Vec::new(),
            asked: 0,
            waiting: 0,
            until: now + LIFE,
            repeats_at: None,
            repeats: 0,
        };
        connection.send(ends.from, now, true, frames);
        self.all.insert(ends, connection);
    }
}

/// The effect of a segment on a connection.
enum Taken {
    /// The connection goes on, with these questions.
    Goes(Vec<Vec<u8>>),
    /// The connection is over.
    Ends,
    /// The guest breaks a rule or a bound.
    Refused,
}

impl Connection {
    fn take(&mut self, segment: &Segment<'_>, now: Instant) -> Taken {
        if segment.has(RST) {
            return if segment.seq == self.next { Taken::Ends } else { Taken::Goes(Vec::new()) };
        }
        if segment.has(SYN) || !segment.has(ACK) {
            return Taken::Goes(Vec::new());
        }
        if !self.is_open {
            if segment.ack != self.unacknowledged.wrapping_add(1) {
                return Taken::Refused;
            }
            self.is_open = true;
            self.unacknowledged = segment.ack;
            (self.repeats, self.repeats_at) = (0, None);
        }
        let acknowledged = segment.ack.wrapping_sub(self.unacknowledged) as usize;
        if acknowledged > 0 && acknowledged <= self.sent + usize::from(self.has_sent_fin) {
            if acknowledged > self.sent {
                return Taken::Ends;
            }
            self.output.drain(..acknowledged);
            self.sent -= acknowledged;
            self.unacknowledged = segment.ack;
            (self.repeats, self.repeats_at) = (0, None);
        }
        self.window = segment.window.into();
        let before = self.next.wrapping_sub(segment.seq) as usize;
        // The segment has only bytes that weir has already received.
        let Some(new) = segment.payload.get(before..) else { return Taken::Goes(Vec::new()) };
        if self.has_ended {
            return Taken::Goes(Vec::new());
        }
        self.next = self.next.wrapping_add(new.len() as u32);
        self.input.extend(new);
        if segment.has(FIN) {
            self.next = self.next.wrapping_add(1);
            self.has_ended = true;
        }
        let mut questions = Vec::new();
        while let Some(length) = self.input.first_chunk() {
            let end = MESSAGE_LENGTH + usize::from(u16::from_be_bytes(*length));
            if end > MESSAGE_LENGTH + DNS_STREAM_QUESTION_BYTES_MAX {
                return Taken::Refused;
            }
            if self.input.len() < end {
                break;
            }
            questions.push(self.input.drain(..end).skip(MESSAGE_LENGTH).collect());
        }
        self.asked += questions.len();
        self.waiting += questions.len();
        if self.asked > DNS_STREAM_QUESTIONS_MAX {
            return Taken::Refused;
        }
        if !questions.is_empty() {
            self.until = now + LIFE;
        }
        Taken::Goes(questions)
    }

    /// Sends as much as the guest takes, the end after all answers, and an acknowledgement if one is due.
    fn send(&mut self, from: PortId, now: Instant, mut is_due: bool, frames: &mut Frames) {
        if !self.is_open {
            if is_due {
                frames.extend(self.frame(from, SYN | ACK, 0, &[]));
                self.repeats_at = Some(now + REPEATS_AFTER);
            }
            return;
        }
        while self.sent < self.output.len().min(self.window) {
            let end = self.output.len().min(self.window).min(self.sent + self.mss);
            let bytes = &self.output[self.sent..end];
            frames.extend(self.frame(from, PSH | ACK, self.sent, bytes));
            self.sent = end;
            is_due = false;
        }
        let is_done = self.has_ended && self.waiting == 0 && self.sent == self.output.len();
        if is_done && !self.has_sent_fin {
            frames.extend(self.frame(from, FIN | ACK, self.sent, &[]));
            self.has_sent_fin = true;
            is_due = false;
        }
        if is_due {
            frames.extend(self.frame(from, ACK, self.end(), &[]));
        }
        let flies = self.end() > 0;
        self.repeats_at = match self.repeats_at {
            None if flies => Some(now + REPEATS_AFTER),
            at => at.filter(|_| flies),
        };
    }

    /// The end of what is sent, from the first byte that is not acknowledged.
    fn end(&self) -> usize {
        self.sent + usize::from(self.has_sent_fin)
    }

    /// A segment whose payload begins `at` bytes after the first byte that is not acknowledged.
    fn frame(
        &self,
        from: PortId,
        flags: u8,
        at: usize,
        payload: &[u8],
    ) -> Option<(PortId, Vec<u8>)> {
        let seq = self.unacknowledged.wrapping_add(at as u32);
        framed(from, &self.way, (seq, self.next), flags, payload)
    }
}

/// Refuses a segment that belongs to no connection (RFC 9293 §3.10.7.1).
fn reset(from: PortId, way: &Way, segment: &Segment<'_>) -> Option<(PortId, Vec<u8>)> {
    match segment.has(ACK) {
        true => framed(from, way, (segment.ack, 0), RST, &[]),
        false => framed(from, way, (0, segment.seq.wrapping_add(segment.len())), RST | ACK, &[]),
    }
}

/// The frame of a segment with these numbers. A segment with SYN states the longest segment that
/// weir takes.
fn framed(
    from: PortId,
    way: &Way,
    (seq, ack): (u32, u32),
    flags: u8,
    payload: &[u8],
) -> Option<(PortId, Vec<u8>)> {
    let mss = MSS_MAX.to_be_bytes();
    let options: &[u8] = if flags & SYN != 0 { &[MSS, 4, mss[0], mss[1]] } else { &[] };
    let words = (usize::from(TCP_HEADER_LEN_MIN) + options.len()) / 4;
    let mut segment = Vec::with_capacity(4 * words + payload.len());
    segment.extend(way.from.port().to_be_bytes());
    segment.extend(way.to.port().to_be_bytes());
    segment.extend(seq.to_be_bytes());
    segment.extend(ack.to_be_bytes());
    segment.extend([(words as u8) << 4, flags]);
    segment.extend(WINDOW.to_be_bytes());
    segment.extend([0; 4]);
    segment.extend(options);
    segment.extend(payload);
    Some((from, way.segment(&segment)?))
}

fn random() -> u32 {
    let mut bytes = [0; 4];
    // A guest that guesses a number harms its own connection only.
    let _ = getrandom(&mut bytes, GetRandomFlags::empty());
    u32::from_ne_bytes(bytes)
}
