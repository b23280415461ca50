//! Recognises acknowledgements: frames a guest receives in answer to its own large segments.

use crate::law::LAW;

/// Largest mean length of acknowledgements (bytes): Ethernet, tags, IPv6, and TCP with its options.
const ACK_BYTES: u64 = 128;

/// The acknowledgement clock. A sender of large segments sends the next ones when an
/// acknowledgement comes, so a long hold of acknowledgements slows it down. The loss is smaller
/// than a stream's natural variation, so that a trial of some stretches cannot show it.
///
/// The caller counts every batch by [`Self::received`], and passes the totals to [`Self::look`]
/// when `received` says so.
#[derive(Clone, Copy, Debug, Default)]
pub struct Answers {
    /// Frames received since the look before.
    frames: u64,
    /// Totals received and sent at the look before, if there was one.
    before: Option<[Total; 2]>,
    are: bool,
}

/// A guest's totals in one direction since it began.
#[derive(Clone, Copy, Debug, Default)]
pub struct Total {
    /// Frames.
    pub frames: u64,
    /// Bytes of these frames.
    pub bytes: u64,
}

impl Total {
    fn since(self, before: Self) -> Self {
        let frames = self.frames.saturating_sub(before.frames);
        Self { frames, bytes: self.bytes.saturating_sub(before.bytes) }
    }
}

impl Answers {
    /// Counts received frames. Returns whether to look now.
    #[inline]
    pub fn received(&mut self, frames: u32) -> bool {
        self.frames += u64::from(frames);
        self.frames >= LAW.frames()
    }

    /// Returns whether received frames acknowledge sent ones, as of the last look.
    pub fn are(&self) -> bool {
        self.are
    }

    /// Takes the totals received and sent. Returns the new answer if it has changed.
    pub fn look(&mut self, received: Total, sent: Total) -> Option<bool> {
        self.frames = 0;
        let before = self.before.replace([received, sent])?;
        let (received, sent) = (received.since(before[0]), sent.since(before[1]));
        let are = sent.frames > 0
            && sent.bytes >= sent.frames.saturating_mul(LAW.segment_bytes())
            && received.bytes <= received.frames.saturating_mul(ACK_BYTES)
            // With more acknowledgements per segment, they were not merged on their way, so
            // gathering them pays.
            && received.frames <= sent.frames.saturating_mul(2);
        let changed = are != std::mem::replace(&mut self.are, are);
        changed.then_some(are)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn total(frames: u64, bytes: u64) -> Total {
        Total { frames, bytes }
    }

    /// Returns the finding for 64 received frames of `received_bytes`, and `sent` frames of
    /// `sent_bytes`.
    fn found(received_bytes: u64, sent: u64, sent_bytes: u64) -> bool {
        let mut answers = Answers::default();
        // Totals of the first look do not count.
        assert_eq!(answers.look(total(500, 500), total(1_000, 1_000)), None);
        assert!(!answers.received(32));
        assert!(answers.received(32));
        let received = total(500 + 64, 500 + 64 * received_bytes);
        answers.look(received, total(1_000 + sent, 1_000 + sent * sent_bytes)).unwrap_or(false)
    }

    #[test]
    fn short_frames_that_are_as_many_as_large_segments_acknowledge_them() {
        assert!(found(66, 64, 65_226));
        assert!(found(66, 32, 65_226));
        assert!(found(86, 300, 16_000));
    }

    #[test]
    fn other_loads_do_not() {
        assert!(!found(66, 31, 65_226), "one for every other 1448 bytes: worth gathering");
        assert!(!found(66, 64, 1_514), "frames of a wire");
        assert!(!found(1_514, 64, 65_226), "data both ways");
        assert!(!found(64, 0, 0), "datagrams");
        assert!(!found(200, 64, 66), "requests");
    }

    #[test]
    fn a_load_that_changes_is_told_once() {
        let mut answers = Answers::default();
        assert_eq!(answers.look(total(0, 0), total(0, 0)), None);
        let (mut rounds, mut sent_bytes) = (0, 0);
        let mut round = |bytes: u64| {
            rounds += 1;
            assert!(answers.received(64));
            sent_bytes += 64 * bytes;
            answers.look(total(rounds * 64, rounds * 64 * 66), total(rounds * 64, sent_bytes))
        };
        assert_eq!(round(65_000), Some(true));
        assert_eq!(round(65_000), None);
        assert_eq!(round(66), Some(false));
        assert_eq!(round(66), None);
    }
}
