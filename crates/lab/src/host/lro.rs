//! LRO in a guest's driver (Zhang 2010; Linux: `inet_lro`, later GRO): adjacent segments of a stream in one poll
//! pass the stack, and are acknowledged, as one.

use crate::frame::{Content, Frame};

/// Longest merged segment (bytes), as for an IPv4 packet.
const MERGED_BYTES_MAX: u32 = 65_535;

/// Segments merged in the present poll: a run for each stream.
#[derive(Debug, Default)]
pub(super) struct Lro {
    runs: Vec<Vec<Frame>>,
}

impl Lro {
    /// Returns whether a frame continues a run.
    pub(super) fn merges(&self, frame: &Frame) -> bool {
        self.runs.iter().any(|run| follows(run, frame))
    }

    /// Adds a frame, and returns the runs that it completes, in order; all runs if the poll ends.
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

    /// Ends the poll: returns all runs.
    pub(super) fn flush(&mut self) -> Vec<Vec<Frame>> {
        std::mem::take(&mut self.runs)
    }

    pub(super) fn frames(&self) -> impl Iterator<Item = &Frame> {
        self.runs.iter().flatten()
    }
}

/// Returns whether a segment continues a run, and fits into it.
fn follows(run: &[Frame], frame: &Frame) -> bool {
    let (Some(Frame { load, content: Content::Segment(last), .. }), Content::Segment(next)) =
        (run.last(), frame.content)
    else {
        return false;
    };
    let bytes = run.iter().map(|frame| frame.bytes).sum::<u32>();
    *load == frame.load && next == last + 1 && bytes + frame.bytes <= MERGED_BYTES_MAX
}
