//! Each port's share of the workers, and its sending rate.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use weir_fabric::PortId;
use weir_limits::{BURST_MAX, FRAME_LEN_MAX, RATE_WAIT_NS};
use weir_policy::schedule::{Kind, Share, TokenBucket};

use crate::switching::limits::{Rate, RateLimit};
use crate::threads::clock;

/// The buckets of one port, shared by the workers that serve its queues.
#[derive(Debug)]
pub(crate) struct Limiter {
    limit: RateLimit,
    buckets: Mutex<Buckets>,
}

#[derive(Debug)]
struct Buckets {
    bits: Option<TokenBucket>,
    packets: Option<TokenBucket>,
    /// Mean size of a frame in the last bursts (bits).
    frame_bits: u64,
    /// Mean size of a frame in the last bursts (packets).
    frame_packets: u64,
}

/// Frames that a port may send now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grant {
    pub(crate) frames: usize,
    bits: u64,
    packets: u64,
}

impl Limiter {
    fn new(limit: RateLimit, now_ns: u64) -> Self {
        let bucket = |rate: Rate| TokenBucket::new(rate.per_s, rate.burst, now_ns);
        let buckets = Mutex::new(Buckets {
            bits: limit.bits.map(bucket),
            packets: limit.packets.map(bucket),
            // Before the first burst, the longest frame is assumed.
            frame_bits: 8 * u64::from(FRAME_LEN_MAX),
            frame_packets: 1,
        });
        Self { limit, buckets }
    }

    fn lock(&self) -> MutexGuard<'_, Buckets> {
        // The buckets are plain numbers, which are valid even if a holder of the lock panicked.
        self.buckets.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Grants a number of frames, which are paid for at once; or returns the time before which no frames are granted
    /// (ns).
    pub(crate) fn grant(&self, now_ns: u64) -> Result<Grant, u64> {
        let mut buckets = self.lock();
        let Buckets { bits, packets, frame_bits, frame_packets } = &mut *buckets;
        let (frame_bits, frame_packets) = (*frame_bits, *frame_packets);
        let mut frames = BURST_MAX as u64;
        let mut until_ns = None;
        for (bucket, rate, frame) in
            [(bits, self.limit.bits, frame_bits), (packets, self.limit.packets, frame_packets)]
        {
            let (Some(bucket), Some(rate)) = (bucket, rate) else { continue };
            let fit = bucket.available(now_ns) / frame;
            // A frame that is longer than the depth of the bucket must pass at some time.
            let fit = if frame > rate.burst { u64::from(bucket.is_full()) } else { fit };
            if fit == 0 {
                let soon = rate.per_s / (1_000_000_000 / RATE_WAIT_NS);
                until_ns = until_ns.max(Some(bucket.ready_at(soon.max(frame))));
            }
            frames = frames.min(fit);
        }
        if let Some(until_ns) = until_ns {
            return Err(until_ns.max(now_ns + 1));
        }
        let (bits, packets) = (frames * frame_bits, frames * frame_packets);
        let grant = Grant { frames: frames as usize, bits, packets };
        buckets.pay(packets, bits);
        Ok(grant)
    }

    /// Settles a grant of which `frames` frames were taken, with this number of packets and bytes on a wire. The bucket
    /// owes the part beyond the grant.
    pub(crate) fn settle(&self, grant: Grant, frames: u64, packets: u64, bytes: u64) {
        let mut buckets = self.lock();
        let bits = bytes.saturating_mul(8);
        buckets.pay(packets, bits);
        if let Some(bucket) = &mut buckets.bits {
            bucket.give_back(grant.bits);
        }
        if let Some(bucket) = &mut buckets.packets {
            bucket.give_back(grant.packets);
        }
        if let Some(mean) = bits.checked_div(frames) {
            buckets.frame_bits = ((buckets.frame_bits + mean) / 2).max(1);
        }
        if let Some(mean) = packets.checked_div(frames) {
            buckets.frame_packets = ((buckets.frame_packets + mean) / 2).max(1);
        }
    }
}

impl Buckets {
    fn pay(&mut self, packets: u64, bits: u64) {
        if let Some(bucket) = &mut self.bits {
            bucket.take(bits);
        }
        if let Some(bucket) = &mut self.packets {
            bucket.take(packets);
        }
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Entitled {
    pub(crate) share: Share,
    /// The rate limiter; `None` without a limit.
    pub(crate) limiter: Option<Arc<Limiter>>,
}

/// The schedule, and the shares of all ports. Workers have copies, and compare versions.
#[derive(Debug, Default)]
pub(crate) struct Shares {
    /// The shares by port number; ports beyond the end have the default.
    ports: Mutex<Vec<Entitled>>,
    schedule: Mutex<Kind>,
    version: AtomicU64,
}

impl Shares {
    pub(crate) fn new(schedule: Kind) -> Self {
        Self { schedule: Mutex::new(schedule), ..Self::default() }
    }

    /// The rule by which workers give turns.
    pub(crate) fn schedule(&self) -> Kind {
        *self.schedule.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Changes the rule, and returns the old one.
    pub(crate) fn set_schedule(&self, schedule: Kind) -> Kind {
        let mut now = self.schedule.lock().unwrap_or_else(|e| e.into_inner());
        let old = std::mem::replace(&mut *now, schedule);
        drop(now);
        self.version.fetch_add(1, Ordering::Release);
        old
    }

    pub(crate) fn set(&self, port: PortId, share: Share, limit: RateLimit) {
        let mut ports = self.lock();
        if ports.len() <= port.index() {
            ports.resize(port.index() + 1, Entitled::default());
        }
        let entitled = &mut ports[port.index()];
        entitled.share = share;
        let before = entitled.limiter.as_ref().map_or(RateLimit::NONE, |limiter| limiter.limit);
        // An unchanged limit keeps the level of its buckets.
        if limit != before {
            let limited = limit != RateLimit::NONE;
            entitled.limiter = limited.then(|| Arc::new(Limiter::new(limit, clock::now_ns())));
        }
        self.version.fetch_add(1, Ordering::Release);
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Entitled>> {
        self.ports.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// A number that changes with every change of the schedule or of a share.
    #[inline]
    pub(crate) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Copies all shares to `ports`, and returns their version.
    pub(crate) fn copy_to(&self, ports: &mut Vec<Entitled>) -> u64 {
        let shared = self.lock();
        ports.clone_from(&shared);
        self.version()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND_NS: u64 = 1_000_000_000;
    const FRAME_BYTES: u64 = 1500;

    /// Bytes and frames that a sender with frames of these lengths can send in `time_ns`.
    fn play(limiter: &Limiter, lengths: &[u64], start_ns: u64, time_ns: u64) -> (u64, u64) {
        let (mut now_ns, mut bytes, mut frames) = (start_ns, 0, 0);
        while now_ns < start_ns + time_ns {
            match limiter.grant(now_ns) {
                Ok(grant) => {
                    let taken = (frames..).take(grant.frames);
                    let length = |n: u64| lengths[n as usize % lengths.len()];
                    let burst_bytes = taken.map(length).sum();
                    let granted = grant.frames as u64;
                    limiter.settle(grant, granted, granted, burst_bytes);
                    bytes += burst_bytes;
                    frames += grant.frames as u64;
                    now_ns += 1_000;
                }
                Err(until_ns) => {
                    assert!(until_ns > now_ns, "or the worker would not sleep");
                    now_ns = until_ns;
                }
            }
        }
        (bytes, frames)
    }

    fn bits(per_s: u64, burst_bytes: u64) -> RateLimit {
        let bits = Some(Rate { per_s, burst: 8 * burst_bytes });
        RateLimit { bits, packets: None }
    }

    #[test]
    fn a_sender_that_always_has_more_gets_its_rate_and_its_burst() {
        for rate in [1_000_000, 100_000_000, 10_000_000_000] {
            let burst = (rate / 8 / 1_000).max(70_000);
            let limiter = Limiter::new(bits(rate, burst), 0);
            let (sent, _) = play(&limiter, &[FRAME_BYTES, 60, 9_000], 0, 10 * SECOND_NS);
            let came = 10 * rate / 8;
            let slack = RATE_WAIT_NS * rate / 8 / SECOND_NS + 64 * 9_000;
            assert!(sent <= came + burst + 64 * 9_000, "{sent} at {rate}");
            assert!(sent + slack >= came + burst, "{sent} at {rate}");
        }
    }

    #[test]
    fn packets_never_exceed_rate_and_burst() {
        let packets = Some(Rate { per_s: 10_000, burst: 100 });
        let limiter = Limiter::new(RateLimit { bits: None, packets }, 0);
        let (_, frames) = play(&limiter, &[60], 0, 10 * SECOND_NS);
        assert!((100_000..=100_100).contains(&frames), "{frames}");
        // Two workers at the same time share the tokens.
        let now_ns = 20 * SECOND_NS;
        let granted: usize =
            [(); 4].map(|()| limiter.grant(now_ns).map_or(0, |g| g.frames)).iter().sum();
        assert_eq!(granted, 100);
    }

    #[test]
    fn the_tighter_of_two_rates_holds() {
        let packets = Some(Rate { per_s: 1_000, burst: 64 });
        let limit = RateLimit { packets, ..bits(100_000_000, 125_000) };
        let (_, frames) = play(&Limiter::new(limit, 0), &[100], 0, SECOND_NS);
        assert!((1_000..=1_064).contains(&frames), "{frames}");
        let (bytes, _) = play(&Limiter::new(limit, 0), &[60_000], 0, SECOND_NS);
        assert!((12_400_000..=12_700_000).contains(&bytes), "{bytes}");
    }

    #[test]
    fn a_sender_of_gso_frames_gets_its_packets_and_owes_what_one_turn_was_beyond() {
        const SEGMENTS: u64 = 45;
        for segments in [SEGMENTS, 65_000] {
            let packets = Some(Rate { per_s: 10_000, burst: 100 });
            let limiter = Limiter::new(RateLimit { bits: None, packets }, 0);
            let (mut now_ns, mut sent, mut plain) = (0, 0, true);
            while now_ns < 1_000 * SECOND_NS {
                match limiter.grant(now_ns) {
                    Ok(grant) => {
                        let frames = grant.frames as u64;
                        // Plain frames make the port look cheap before each expensive turn.
                        let packets = frames * if plain { 1 } else { segments };
                        plain = !plain;
                        limiter.settle(grant, frames, packets, frames);
                        sent += packets;
                        now_ns += 1_000;
                    }
                    Err(until_ns) => now_ns = until_ns,
                }
            }
            let turn = BURST_MAX as u64 * segments;
            assert!((9_000_000..=10_000_100 + turn).contains(&sent), "{sent} of {segments}");
        }
    }

    #[test]
    fn a_sender_that_goes_on_with_gso_frames_is_granted_what_they_are() {
        let packets = Some(Rate { per_s: 100_000, burst: 100 });
        let limiter = Limiter::new(RateLimit { bits: None, packets }, 0);
        for second in 0..10 {
            let grant = limiter.grant(second * SECOND_NS).unwrap();
            let frames = grant.frames as u64;
            limiter.settle(grant, frames, 45 * frames, frames);
        }
        assert_eq!(limiter.grant(11 * SECOND_NS).unwrap().frames, 2, "2 of 45 in 100");
    }

    #[test]
    fn what_is_not_taken_of_a_grant_is_given_back() {
        let packets = Some(Rate { per_s: 1, burst: 10 });
        let limiter = Limiter::new(RateLimit { bits: None, packets }, 0);
        for _ in 0..100 {
            let grant = limiter.grant(0).unwrap();
            assert_eq!(grant.frames, 10);
            limiter.settle(grant, 0, 0, 0);
        }
    }

    #[test]
    fn a_frame_longer_than_the_bucket_is_deep_passes_and_is_owed() {
        let limiter = Limiter::new(bits(1_000_000, 1_500), 0);
        let (sent, _) = play(&limiter, &[60_000], 0, 100 * SECOND_NS);
        assert!((12_300_000..=12_620_000).contains(&sent), "{sent}");
    }

    #[test]
    fn a_bucket_keeps_its_level_when_something_else_changes() {
        let shares = Shares::default();
        let port = PortId::new(3).unwrap();
        let packets = Some(Rate { per_s: 1, burst: 10 });
        let limit = RateLimit { bits: None, packets };
        let mut copies = Vec::new();
        let mut limiter_of = |share| {
            shares.set(port, share, limit);
            let version = shares.copy_to(&mut copies);
            assert_eq!(version, shares.version());
            copies[port.index()].limiter.clone().unwrap()
        };
        let first = limiter_of(Share::default());
        let second = limiter_of(Share { weight: 7, window: None });
        assert!(Arc::ptr_eq(&first, &second));
        shares.set(port, Share::default(), RateLimit::NONE);
        shares.copy_to(&mut copies);
        assert!(copies[port.index()].limiter.is_none());
    }
}
