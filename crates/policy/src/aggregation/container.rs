//! The contents of a container, and when the container is due.

use weir_limits::CONTAINER_BYTES_DEFAULT;

/// Limits that end a container before its timeout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of frames that fill a container.
    pub bytes: u32,
    /// Frames that fill a container; `None`: any number.
    pub frames: Option<u32>,
}

impl Default for Limits {
    /// One page, as in the paper, and any number of frames.
    fn default() -> Self {
        Self { bytes: CONTAINER_BYTES_DEFAULT, frames: None }
    }
}

/// The container that is being filled. It counts its frames and does not hold them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Container {
    content: Option<Content>,
}

#[derive(Clone, Copy, Debug)]
struct Content {
    /// Time at which the earliest frame reached weir (ns).
    earliest_ns: u64,
    /// Time of the latest addition (ns).
    latest_ns: u64,
    /// Number of additions.
    additions: u32,
    frames: u32,
    bytes: u64,
}

impl Container {
    /// Adds frames that came together at `now_ns`. The earliest of them reached weir at
    /// `arrived_ns`.
    pub fn add(&mut self, now_ns: u64, frames: u32, bytes: u64, arrived_ns: u64) {
        let before = self.content.unwrap_or(Content {
            earliest_ns: u64::MAX,
            latest_ns: now_ns,
            additions: 0,
            frames: 0,
            bytes: 0,
        });
        self.content = Some(Content {
            earliest_ns: before.earliest_ns.min(arrived_ns),
            latest_ns: now_ns,
            additions: before.additions.saturating_add(1),
            frames: before.frames.saturating_add(frames),
            bytes: before.bytes.saturating_add(bytes),
        });
    }

    /// Returns when the container has to go (ns): never while it is empty, at once (0) when it is
    /// full, otherwise `timeout_ns` after its earliest frame reached weir.
    pub fn due_ns(&self, limits: &Limits, timeout_ns: u64) -> u64 {
        let Some(content) = self.content else { return u64::MAX };
        let full = content.bytes >= limits.bytes.into()
            || limits.frames.is_some_and(|most| content.frames >= most);
        if full { 0 } else { content.earliest_ns.saturating_add(timeout_ns) }
    }

    /// Returns when the container will have gained nothing for `quiet_ns` (ns); never while it is
    /// empty.
    pub fn quiet_at_ns(&self, quiet_ns: u64) -> u64 {
        self.content.map_or(u64::MAX, |content| content.latest_ns.saturating_add(quiet_ns))
    }

    /// Returns whether nothing has joined the first addition.
    pub fn is_alone(&self) -> bool {
        self.content.is_some_and(|content| content.additions == 1)
    }

    /// Empties the container after it was handed over.
    pub fn clear(&mut self) {
        self.content = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANY: Limits = Limits { bytes: u32::MAX, frames: None };

    #[test]
    fn an_empty_container_is_never_due() {
        let mut container = Container::default();
        assert_eq!(container.due_ns(&Limits::default(), 0), u64::MAX);
        container.add(5, 64, 4096, 5);
        container.clear();
        assert_eq!(container.due_ns(&Limits::default(), 0), u64::MAX);
        assert_eq!(container.quiet_at_ns(0), u64::MAX);
        assert!(!container.is_alone());
    }

    #[test]
    fn the_timeout_counts_from_the_earliest_arrival() {
        let mut container = Container::default();
        container.add(10, 1, 60, 7);
        container.add(20, 1, 60, 4);
        assert_eq!(container.due_ns(&ANY, 100), 104);
        assert_eq!(container.quiet_at_ns(100), 120);
        container.add(30, 1, 60, 30);
        assert_eq!(container.due_ns(&ANY, 100), 104);
        assert_eq!(container.due_ns(&ANY, u64::MAX), u64::MAX);
    }

    #[test]
    fn a_full_container_is_due_at_once() {
        let mut container = Container::default();
        container.add(10, 3, 4095, 10);
        assert_eq!(container.due_ns(&Limits::default(), 100), 110);
        let limits = Limits { frames: Some(4), ..ANY };
        assert_eq!(container.due_ns(&limits, 100), 110);
        container.add(11, 1, 1, 11);
        assert_eq!(container.due_ns(&Limits::default(), 100), 0);
        assert_eq!(container.due_ns(&limits, 100), 0);
        assert_eq!(container.due_ns(&ANY, 100), 110);
    }

    #[test]
    fn frames_that_come_together_are_alone_until_others_join() {
        let mut container = Container::default();
        container.add(10, 20, 2000, 10);
        assert!(container.is_alone());
        container.add(11, 1, 60, 11);
        assert!(!container.is_alone());
    }
}
