//! A guest with its own TCP, which loses segments, lies and floods.

use std::net::Ipv4Addr;

use weir_wire::{Layers, Mac, Network, Transport};

use super::*;

const GUEST: PortId = PortId::new(1).unwrap();
const PORT: u16 = 4_000;
/// The first number of the guest.
const FIRST: u32 = 0xffff_fff0;

fn way(port: u16) -> Way {
    Way {
        macs: (Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2])),
        from: (Ipv4Addr::new(192, 168, 77, 1), 53).into(),
        to: (Ipv4Addr::new(192, 168, 77, 9), port).into(),
    }
}

/// A connection that nobody has.
pub(crate) fn a_connection() -> StreamId {
    let way = way(PORT);
    StreamId { ends: Ends { from: GUEST, guest: way.to, own: way.from }, number: 1 }
}

/// The content of a segment of weir's.
#[derive(Debug, PartialEq, Eq)]
struct Heard {
    seq: u32,
    ack: u32,
    flags: u8,
    mss: Option<u16>,
    payload: Vec<u8>,
}

fn heard(frame: &[u8]) -> Heard {
    let layers = Layers::parse(frame).unwrap();
    let (Network::Ipv4(ip), Transport::Tcp { offset, .. }) = (layers.network, layers.transport)
    else {
        panic!("{frame:?}")
    };
    let segment = &frame[offset.into()..14 + usize::from(ip.total_len)];
    let mut sum = weir_wire::checksum::Sum::new();
    sum.add(&frame[26..34]);
    sum.add_u32(6);
    sum.add_u32(segment.len() as u32);
    sum.add(segment);
    assert_eq!(sum.finish(), 0, "its checksum is right");
    let Segment { seq, ack, flags, mss, payload, .. } = Segment::read(segment).unwrap();
    Heard { seq, ack, flags, mss, payload: payload.to_vec() }
}

/// A guest's side of one connection.
struct Guest {
    streams: Streams,
    now: Instant,
    from: PortId,
    port: u16,
    next: u32,
    ack: u32,
    window: u16,
    frames: Frames,
}

impl Guest {
    fn new() -> Self {
        Self {
            streams: Streams::default(),
            now: Instant::now(),
            from: GUEST,
            port: PORT,
            next: FIRST,
            ack: 0,
            window: 8_000,
            frames: Vec::new(),
        }
    }

    /// Sends a segment at `seq`, and returns the questions that weir has then.
    fn put(&mut self, seq: u32, flags: u8, payload: &[u8]) -> Vec<(StreamId, Vec<u8>)> {
        let mut segment = Vec::new();
        segment.extend(self.port.to_be_bytes());
        segment.extend(53_u16.to_be_bytes());
        segment.extend(seq.to_be_bytes());
        segment.extend(self.ack.to_be_bytes());
        segment.extend([6 << 4, flags]);
        segment.extend(self.window.to_be_bytes());
        segment.extend([0; 4]);
        segment.extend([MSS, 4, 2, 88]);
        segment.extend(payload);
        let way = way(self.port);
        self.streams.take(self.from, way, &segment, self.now, &mut self.frames)
    }

    /// Sends what comes next.
    fn says(&mut self, flags: u8, payload: &[u8]) -> Vec<(StreamId, Vec<u8>)> {
        let seq = self.next;
        let len = payload.len() as u32 + u32::from(flags & (SYN | FIN) != 0);
        self.next = seq.wrapping_add(len);
        self.put(seq, flags, payload)
    }

    fn hears(&mut self) -> Vec<Heard> {
        self.frames.drain(..).map(|(_, frame)| heard(&frame)).collect()
    }

    fn opens(&mut self) {
        assert!(self.says(SYN, &[]).is_empty());
        let all = self.hears();
        let [Heard { seq, ack, flags, mss, .. }] = &all[..] else { panic!("{all:?}") };
        assert_eq!((*ack, *flags, *mss), (self.next, SYN | ACK, Some(MSS_MAX)));
        self.ack = seq.wrapping_add(1);
        assert!(self.says(ACK, &[]).is_empty() && self.hears().is_empty());
    }

    fn answers(&mut self, id: StreamId, answer: &[u8]) {
        self.streams.answer(id, answer, self.now, &mut self.frames);
    }

    fn waits(&mut self, time: Duration) {
        self.now += time;
        self.streams.look(self.now, &mut self.frames);
    }
}

fn framed(message: &[u8]) -> Vec<u8> {
    [&(message.len() as u16).to_be_bytes()[..], message].concat()
}

#[test]
fn a_question_in_pieces_is_answered_and_the_end_follows_all_answers() {
    let mut guest = Guest::new();
    guest.opens();
    let asked = framed(b"what is web0?");
    assert!(guest.says(PSH | ACK, &asked[..1]).is_empty());
    assert_eq!(guest.hears()[0].ack, guest.next);
    let questions = guest.says(PSH | ACK, &[&asked[1..], &framed(b"and db0?")].concat());
    let texts: Vec<_> = questions.iter().map(|(_, text)| text.as_slice()).collect();
    assert_eq!(texts, [&b"what is web0?"[..], b"and db0?"]);
    assert_eq!(guest.hears().len(), 1, "it is acknowledged");
    guest.says(FIN | ACK, &[]);
    assert_eq!(guest.hears()[0].flags, ACK, "two answers are still to come");
    guest.answers(questions[1].0, b"second");
    let all = guest.hears();
    assert_eq!((all.len(), &all[0].payload), (1, &framed(b"second")));
    guest.answers(questions[0].0, b"first");
    let all = guest.hears();
    assert_eq!((&all[0].payload, all[1].flags), (&framed(b"first"), FIN | ACK));
    assert_eq!(all[1].seq, guest.ack.wrapping_add(15));
    guest.ack = guest.ack.wrapping_add(16);
    guest.says(ACK, &[]);
    assert!(guest.streams.all.is_empty() && guest.hears().is_empty());
    assert_eq!(guest.streams.due(), None);
}

#[test]
fn what_is_lost_is_sent_again_and_no_more_than_the_guest_takes_flies() {
    let mut guest = Guest::new();
    guest.opens();
    let asked = framed(b"all of it");
    let at = guest.next;
    let id = guest.says(PSH | ACK, &asked)[0].0;
    assert_eq!(guest.hears().len(), 1);
    // The question comes a second time, and once from the future.
    assert!(guest.put(at, PSH | ACK, &asked).is_empty());
    assert!(guest.put(guest.next.wrapping_add(50), PSH | ACK, &asked).is_empty());
    assert!(guest.hears().iter().all(|it| it.flags == ACK && it.ack == guest.next));
    let answer: Vec<u8> = (0..10_000_u32).map(|n| n as u8).collect();
    guest.answers(id, &answer);
    let first = guest.hears();
    assert!(first.iter().all(|it| it.payload.len() <= 600), "as its MSS says");
    let flies: usize = first.iter().map(|it| it.payload.len()).sum();
    assert_eq!(flies, usize::from(guest.window));
    // The third segment is lost. weir sends it and the later ones again.
    let mut got: Vec<u8> = first[..2].iter().flat_map(|it| it.payload.clone()).collect();
    guest.ack = guest.ack.wrapping_add(got.len() as u32);
    guest.says(ACK, &[]);
    guest.hears();
    guest.waits(REPEATS_AFTER);
    let again = guest.hears();
    assert_eq!(again[0].seq, guest.ack);
    let bytes: Vec<u8> = again.iter().flat_map(|it| it.payload.clone()).collect();
    got.extend(&bytes);
    guest.ack = guest.ack.wrapping_add(bytes.len() as u32);
    guest.says(ACK, &[]);
    got.extend(guest.hears().iter().flat_map(|it| it.payload.clone()));
    assert_eq!(got, framed(&answer));
}

#[test]
fn a_guest_that_takes_nothing_or_says_nothing_is_left_after_a_while() {
    let mut guest = Guest::new();
    guest.opens();
    let id = guest.says(PSH | ACK, &framed(b"x"))[0].0;
    guest.answers(id, b"y");
    guest.hears();
    for _ in 0..REPEATS {
        guest.waits(REPEATS_AFTER);
        assert_eq!(guest.hears()[0].payload, framed(b"y"));
    }
    guest.waits(REPEATS_AFTER);
    assert_eq!((guest.hears()[0].flags & RST, guest.streams.all.len()), (RST, 0));

    let mut guest = Guest::new();
    guest.opens();
    guest.waits(LIFE - Duration::from_millis(1));
    assert_eq!((guest.hears().len(), guest.streams.all.len()), (0, 1));
    guest.waits(Duration::from_millis(1));
    assert_eq!((guest.hears()[0].flags & RST, guest.streams.all.len()), (RST, 0));
    // The connection is gone: an answer for it goes nowhere, and its next segment is refused.
    guest.answers(id, b"late");
    assert!(guest.hears().is_empty());
    guest.says(ACK, b"more");
    assert_eq!(guest.hears()[0].flags, RST);

    // A handshake that is not finished is repeated, and ends.
    let mut guest = Guest::new();
    guest.says(SYN, &[]);
    for _ in 0..REPEATS {
        assert_eq!(guest.hears()[0].flags, SYN | ACK);
        guest.waits(REPEATS_AFTER);
    }
    guest.hears();
    guest.waits(REPEATS_AFTER);
    assert!(guest.streams.all.is_empty());
}

#[test]
fn a_flood_fills_its_own_places_alone() {
    let mut guest = Guest::new();
    for port in 0..50 {
        (guest.port, guest.next) = (PORT + port, FIRST);
        guest.says(SYN, &[]);
    }
    let refused = guest.hears().iter().filter(|it| it.flags & RST != 0).count();
    assert_eq!(guest.streams.all.len(), DNS_STREAMS_PER_VIF_MAX);
    assert_eq!(refused, 50 - DNS_STREAMS_PER_VIF_MAX);
    assert_eq!(guest.streams.refused, refused as u64);
    // Each of many guests has at least one.
    let guests = 300;
    for number in 2..2 + guests {
        guest.from = PortId::new(number).unwrap();
        for port in 0..2 {
            (guest.port, guest.next) = (PORT + port, FIRST);
            guest.says(SYN, &[]);
        }
    }
    assert!(guest.streams.all.len() <= DNS_STREAMS_MAX + usize::from(guests));
    let first = |it: &PortId| guest.streams.all.keys().any(|ends| ends.from == *it);
    assert!((2..2 + guests).all(|number| first(&PortId::new(number).unwrap())));
    guest.hears();

    // The guest sends long questions and too many of them, and takes no answers.
    let mut guest = Guest::new();
    guest.opens();
    guest.says(ACK, &[0xff, 0xff]);
    assert_eq!((guest.hears()[0].flags & RST, guest.streams.all.len()), (RST, 0));
    let mut guest = Guest::new();
    guest.opens();
    guest.says(ACK, &[0; 200]);
    assert_eq!((guest.hears()[0].flags & RST, guest.streams.all.len()), (RST, 0));
    let mut guest = Guest::new();
    guest.opens();
    guest.window = 0;
    let id = guest.says(ACK, &framed(b"x"))[0].0;
    guest.hears();
    guest.answers(id, &vec![1; DNS_STREAM_ANSWERS_BYTES_MAX / 2]);
    guest.answers(id, &vec![1; DNS_STREAM_ANSWERS_BYTES_MAX / 2]);
    assert_eq!((guest.hears()[0].flags & RST, guest.streams.all.len()), (RST, 0));
}

#[test]
fn a_segment_of_no_connection_and_a_wrong_handshake_are_refused() {
    let mut guest = Guest::new();
    guest.ack = 77;
    guest.says(ACK, b"hello");
    let [refused] = &guest.hears()[..] else { panic!() };
    assert_eq!((refused.seq, refused.flags), (77, RST));
    guest.says(RST | ACK, &[]);
    assert!(guest.hears().is_empty(), "a reset is not answered");
    guest.next = FIRST;
    guest.says(SYN, &[]);
    guest.hears();
    guest.says(ACK, &[]);
    assert_eq!((guest.hears()[0].flags, guest.streams.all.len()), (RST, 0));
    // The guest sends bytes that are no segment.
    let mut frames = Vec::new();
    for bytes in [&[][..], &[0; 19], &[0xff; 20], &[[0; 12], [0xf0; 12]].concat()] {
        let taken = guest.streams.take(GUEST, way(PORT), bytes, guest.now, &mut frames);
        assert!(taken.is_empty());
    }
    // A reset within the connection ends it, and one elsewhere does not.
    let mut guest = Guest::new();
    guest.opens();
    guest.put(guest.next.wrapping_add(1), RST, &[]);
    assert_eq!(guest.streams.all.len(), 1);
    guest.says(RST, &[]);
    assert_eq!(guest.streams.all.len(), 0);
}
