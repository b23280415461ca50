//! Judges frames of known connections in bursts of 32 for both ends, as a worker does, so that
//! callgrind can count instructions: `cost FLOWS FRAMES RULES`. Flows take turns frame by frame,
//! and no rule matches them. With 0 flows, connections of TCP are opened and closed, each with six
//! frames; with -1 flows they are only requested, as in a flood, which fills the table; with -2
//! flows they are opened and stay, each with three frames. The difference of two runs is the cost
//! of the further frames.

use weir_groups::{Decision, Direction, Frame, Other, Peer, Policy, Rows, Rule, Table, Vlans};
use weir_limits::HEAD_LEN;

/// Frames of a burst.
const BURST: usize = 32;
/// Time between bursts: three million frames a second.
const BURST_NS: u64 = 10_000;
/// Shortest frame of Ethernet, without its checksum.
const LEN: usize = 60;

/// A frame as a burst has it.
#[derive(Clone, Copy)]
struct Taken {
    head: [u8; HEAD_LEN],
    len: usize,
    vlans: Vlans,
}

/// The beginning of a UDP datagram from another port for each flow.
fn head(flow: u16) -> [u8; HEAD_LEN] {
    let mut head = [0; HEAD_LEN];
    head[12..14].copy_from_slice(&[8, 0]);
    head[14..24].copy_from_slice(&[0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17]);
    head[26..34].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
    head[34..36].copy_from_slice(&flow.to_be_bytes());
    head[36..40].copy_from_slice(&[0, 53, 0, 26]);
    head
}

fn main() {
    let mut numbers =
        std::env::args().skip(1).map(|it| it.parse().expect("cost FLOWS FRAMES RULES"));
    let mut number = || -> isize { numbers.next().expect("cost FLOWS FRAMES RULES") };
    let (flows, frames, rules) = (number(), number() as usize, number() as usize);
    let (steps, flows) = match flows {
        -1 => (&STEPS[..1], 0),
        -2 => (&STEPS[..3], 0),
        flows => (&STEPS[..], flows as u16),
    };
    let heads: Vec<_> = (0..flows).map(head).collect();
    let rule = Rule {
        direction: Direction::Out,
        protocol: Some(6),
        values: [(22, 22)].into(),
        other: Other::Anyone,
    };
    let policy = Policy {
        allow_in: false,
        allow_out: true,
        rules: vec![rule; rules].into(),
        groups: Box::default(),
        log: false,
        set_id: 0,
        generation: 0,
    };
    let mut table = Table::new(1, 0);
    if flows == 0 {
        return connections(&mut table, &policy, frames, steps);
    }
    // The table of the other end.
    let mut at_receiver = Table::new(2, 0);
    let open = Policy { allow_in: true, ..policy.clone() };
    let frame = |head: &[u8; HEAD_LEN]| Taken { head: *head, len: LEN, vlans: Vlans::default() };
    // Whole bursts, in which each flow has equally many frames.
    let turns: Vec<_> = heads.iter().map(frame).cycle().take(heads.len() * BURST).collect();
    let mut rows = Rows::default();
    for (nth, burst) in turns.chunks_exact(BURST).cycle().take(frames / BURST).enumerate() {
        let now_ns = nth as u64 * BURST_NS;
        let burst: &[Taken; BURST] = burst.first_chunk().expect("a whole burst");
        rows.read(BURST, |nth| (&burst[nth].head, burst[nth].len, burst[nth].vlans));
        for (table, policy, direction) in
            [(&mut table, &policy, Direction::Out), (&mut at_receiver, &open, Direction::In)]
        {
            table.ask(policy, direction, &rows, None, now_ns, &mut |table, nth, claimed| {
                let frame =
                    Frame { bytes: &burst[nth].head[..LEN], len: LEN as u32, vid: 0, again: false };
                let peer = Peer { claimed, ..Peer::default() };
                let judged = table.judge(policy, direction, frame, peer, now_ns);
                assert!(matches!(judged, Some(Decision::Passes(_))), "refused: {judged:?}");
            });
        }
    }
}

/// Flags of TCP.
const FIN: u8 = 1;
const SYN: u8 = 2;
const ACK: u8 = 16;

/// Handshake and close, as both ends send them.
const STEPS: [(Direction, u8); 6] = [
    (Direction::Out, SYN),
    (Direction::In, SYN | ACK),
    (Direction::Out, ACK),
    (Direction::Out, FIN | ACK),
    (Direction::In, FIN | ACK),
    (Direction::Out, ACK),
];

/// A guest's connections, one after the other, each with these steps.
fn connections(table: &mut Table, policy: &Policy, frames: usize, steps: &[(Direction, u8)]) {
    use Direction::{In, Out};
    let mut rows = Rows::default();
    for number in 0..frames / steps.len() {
        for &(direction, flags) in steps {
            let mut head = head(0);
            head[23] = 6;
            head[46..48].copy_from_slice(&[0x50, flags]);
            let own = number.to_be_bytes();
            let (address, port) = if direction == Out { (26, 34) } else { (30, 36) };
            head[26..34].fill(10);
            head[36..38].copy_from_slice(&[0, 80]);
            if direction == In {
                head[34..36].copy_from_slice(&[0, 80]);
            }
            head[address..address + 4].copy_from_slice(&own[2..6]);
            head[port..port + 2].copy_from_slice(&own[6..]);
            let bytes = &head[..LEN];
            rows.read(1, |_| (&head, LEN, Vlans::default()));
            table.ask(policy, direction, &rows, None, 0, &mut |table, _, claimed| {
                let frame = Frame { bytes, len: LEN as u32, vid: 0, again: false };
                let peer = Peer { claimed, ..Peer::default() };
                let judged = table.judge(policy, direction, frame, peer, 0);
                assert!(matches!(judged, Some(Decision::Passes(_))), "refused: {judged:?}");
            });
        }
    }
}
