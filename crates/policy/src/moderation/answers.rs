//! Whether what a guest receives acknowledges what it sends.

use super::Batch;

/// Frames received between two looks.
const LOOK_FRAMES: u64 = 64;
/// Mean length (bytes) from which on what a guest sends are TCP's large segments: beside the work for one of them an
/// interrupt for its acknowledgement is little.
const SEGMENT_BYTES: u64 = 8_192;
/// No longer on average (bytes) are acknowledgements: Ethernet, IPv6, TCP with its options.
const ACK_BYTES: u64 = 128;
/// No more of them come for a segment, where they have been merged on their way. More are worth gathering.
const ACKS_PER_SEGMENT: u64 = 2;

/// The acknowledgement clock: a sender of large segments sends the next ones when an acknowledgement comes. Holding those
/// slows it down, by so much less than a stream's rate varies by itself that no trial of some stretches shows it.
///
/// Who drives it counts every batch by [`Self::received`], and asks [`Self::look`] when that says so.
#[derive(Clone, Copy, Debug, Default)]
pub struct Answers {
    received: Counted,
    /// What had been sent at the look before, if there was one.
    sent: Option<Counted>,
    are: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counted {
    frames: u64,
    bytes: u64,
}

impl Answers {
    /// The guest has received a batch. Whether it is time to look.
    #[inline]
    pub fn received(&mut self, batch: &Batch) -> bool {
        self.received.frames += u64::from(batch.frames);
        self.received.bytes = self.received.bytes.saturating_add(batch.bytes);
        self.received.frames >= LOOK_FRAMES
    }

    /// Whether what it receives acknowledges what it sends, as of the last look.
    pub fn are(&self) -> bool {
        self.are
    }

    /// So many frames and bytes have been sent in all. Says what is so now, if that is new.
    pub fn look(&mut self, frames: u64, bytes: u64) -> Option<bool> {
        let received = std::mem::take(&mut self.received);
        let before = self.sent.replace(Counted { frames, bytes })?;
        let sent_frames = frames.saturating_sub(before.frames);
        let sent_bytes = bytes.saturating_sub(before.bytes);
        let are = sent_frames > 0
            && sent_bytes >= sent_frames.saturating_mul(SEGMENT_BYTES)
            && received.bytes <= received.frames.saturating_mul(ACK_BYTES)
            && received.frames <= sent_frames.saturating_mul(ACKS_PER_SEGMENT);
        let changed = are != std::mem::replace(&mut self.are, are);
        changed.then_some(are)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is found of 64 received frames so long (bytes), and so many sent that were so long.
    fn found(received_bytes: u64, sent: u64, sent_bytes: u64) -> bool {
        let mut answers = Answers::default();
        // What was sent before is not counted.
        assert_eq!(answers.look(1_000, 1_000), None);
        let batch = Batch { frames: 32, bytes: 32 * received_bytes, arrived_ns: 0 };
        assert!(!answers.received(&batch));
        assert!(answers.received(&batch));
        answers.look(1_000 + sent, 1_000 + sent * sent_bytes).unwrap_or(false)
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
        let acks = Batch { frames: 64, bytes: 64 * 66, arrived_ns: 0 };
        assert_eq!(answers.look(0, 0), None);
        let (mut sent, mut sent_bytes) = (0, 0);
        let mut round = |bytes: u64| {
            sent += 64;
            assert!(answers.received(&acks));
            sent_bytes += 64 * bytes;
            answers.look(sent, sent_bytes)
        };
        assert_eq!(round(65_000), Some(true));
        assert_eq!(round(65_000), None);
        assert_eq!(round(66), Some(false));
        assert_eq!(round(66), None);
    }
}
