//! LRO in a guest's driver (Zhang 2010; Linux: `inet_lro`, later GRO): adjacent segments of a stream in one poll
//! pass the stack, and are acknowledged, as one.

use crate::frame::{Content, Frame};

/// What a merged segment may have (bytes): what an IPv4 packet may.
const MERGED_BYTES_MAX: u32 = 65_535;

/// Segments that have been merged in the poll under way: a run for each stream.
#[derive(Debug, Default)]
pub(super) struct Lro {
    runs: Vec<Vec<Frame>>,
}

impl Lro {
    /// Whether a frame goes on where a run ends.
    pub(super) fn merges(&self, frame: &Frame) -> bool {
        self.runs.iter().any(|run| follows(run, frame))
    }

    /// Adds a frame, and gives what is complete with it, in order; everything, if the poll ends.
    pub(super) fn add(&mut self, frame: Frame, poll_ends: bool) -> Vec<Vec<Frame>> {
        let mut complete = Vec::new();
        match self.runs.iter().position(|run| run.first().is_some_and(|it| it.load == frame.load)) {
            Some(at) if follows(&self.runs[at], &frame) => self.runs[at].push(frame),
            Some(at) => complete.push(std::mem::replace(&mut self.runs[at], vec![frame])),
            None => self.runs.push(vec![frame]),
        }
        if poll_ends {
            complete.append(&mut self.runs);
        }
        complete
    }

    /// The poll ends: everything is complete.
    pub(super) fn flush(&mut self) -> Vec<Vec<Frame>> {
        std::mem::take(&mut self.runs)
    }

    pub(super) fn frames(&self) -> impl Iterator<Item = &Frame> {
        self.runs.iter().flatten()
    }
}

/// Whether a segment goes on where a run ends, and there is room for it.
fn follows(run: &[Frame], frame: &Frame) -> bool {
    let (Some(Frame { load, content: Content::Segment(last), .. }), Content::Segment(next)) =
        (run.last(), frame.content)
    else {
        return false;
    };
    let bytes = run.iter().map(|frame| frame.bytes).sum::<u32>();
    *load == frame.load && next == last + 1 && bytes + frame.bytes <= MERGED_BYTES_MAX
}
