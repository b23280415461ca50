//! Judges frames of known connections in bursts of 32, as a worker does, so that callgrind can count instructions:
//! `cost FLOWS FRAMES RULES`. Flows take turns frame by frame, and no rule is for them. The difference of two runs is what their further frames cost.

use weir_groups::{Decision, Direction, Frame, Judged, Memo, Other, Peer, Policy, Rule, Table};
use weir_limits::HEAD_LEN;

/// Frames of a burst.
const BURST: u32 = 32;
/// Shortest frame of Ethernet, without its checksum.
const LEN: usize = 60;

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
    let mut number = || numbers.next().expect("cost FLOWS FRAMES RULES");
    let (flows, frames, rules): (u16, u32, usize) = (number() as u16, number(), number() as usize);
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
        generation: 0,
    };
    let mut table = Table::new(1, 0);
    let mut last: Option<Memo> = None;
    for (nth, head) in (0..frames).zip(heads.iter().cycle()) {
        // Nothing is remembered from one burst to the next.
        last = last.filter(|_| !nth.is_multiple_of(BURST));
        if last.as_ref().is_some_and(|memo| memo.is_of(head, LEN)) {
            continue;
        }
        let frame = Frame { bytes: &head[..LEN], len: LEN as u32, vid: 0, again: false };
        let judged = table.judge(&policy, Direction::Out, frame, Peer::default(), 0);
        let Some(Judged { decision: Decision::Passes(_), steady }) = judged else {
            panic!("refused: {judged:?}");
        };
        last = steady.then(|| Memo::of(head, LEN)).flatten();
    }
}
