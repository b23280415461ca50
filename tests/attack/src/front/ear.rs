//! A guest that keeps the rules, and what it hears.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use super::{
    Strike,
    frame::Header,
    guest::{Guest, Plan},
    harm,
};

/// Longest time until a frame arrives.
const PATIENCE: Duration = Duration::from_secs(2);
/// The number of bytes of each frame that are looked at.
const FRONT: usize = 512;

/// A guest that reads all that it receives.
#[derive(Debug)]
pub struct Ear {
    /// The guest.
    pub guest: Guest,
    seen: u16,
}

impl Ear {
    /// Attaches the guest.
    pub fn attach(path: &Path) -> Strike<Self> {
        let guest = Guest::attach(path, Plan::default())?;
        // Rings that continue may have frames for the guest before this one.
        let seen = guest.ring(0).used();
        Ok(Self { guest, seen })
    }

    /// Reads what has arrived: the front of each frame.
    pub fn read(&mut self, mut each: impl FnMut(&[u8])) {
        while self.seen != self.guest.ring(0).used() {
            each(&self.guest.received(0, self.seen, FRONT));
            self.seen = self.seen.wrapping_add(1);
        }
        self.guest.repost(0);
    }

    /// Sends one frame, which weir must take.
    pub fn say(&self, frame: &[u8]) -> Strike {
        self.guest.send(1, Header::default(), frame);
        self.guest.taken(1, "a frame of a guest that keeps the rules")
    }

    /// Makes `other` send `frame` until it arrives here. A frame that never arrives is harm, `why`.
    pub fn must_hear(&mut self, other: &Self, frame: &[u8], why: &str) -> Strike {
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end {
            other.say(frame)?;
            let wait = Instant::now() + Duration::from_millis(50);
            while Instant::now() < wait {
                let mut heard = false;
                self.read(|got| heard |= got.starts_with(frame));
                if heard {
                    return Ok(());
                }
                std::thread::sleep(Duration::from_micros(100));
            }
        }
        harm(why)
    }

    /// Makes `other` send `frames`, none of which may arrive here, and then `last`, which must.
    pub fn must_not_hear(
        &mut self,
        other: &Self,
        frames: &[Vec<u8>],
        last: &[u8],
        why: &str,
    ) -> Strike {
        self.read(|_| ());
        for frame in frames {
            other.say(frame)?;
        }
        let end = Instant::now() + PATIENCE;
        let (mut wrong, mut heard) = (None, false);
        while !heard && Instant::now() < end {
            other.say(last)?;
            std::thread::sleep(Duration::from_micros(500));
            self.read(|got| {
                heard |= got.starts_with(last);
                wrong = wrong.or_else(|| frames.iter().position(|frame| got.starts_with(frame)));
            });
        }
        match (wrong, heard) {
            (Some(which), _) => harm(format!("{why}: {which} of {}", frames.len())),
            (None, true) => Ok(()),
            (None, false) => harm(format!("{why}: what may pass does not either")),
        }
    }

    /// Makes `other` send all that its transmit ring has, while this guest reads.
    pub fn flooded_by(&mut self, other: &Guest) -> Strike {
        other.pump(1);
        let (ring, end) = (other.ring(1), Instant::now() + PATIENCE);
        while ring.used() != other.memory.u16_at(ring.index_at()) {
            if Instant::now() > end {
                return harm("weir leaves frames of a flood in the ring");
            }
            self.read(|_| ());
            std::thread::sleep(Duration::from_micros(50));
        }
        self.read(|_| ());
        Ok(())
    }
}
