//! CPUs, and the caches that they share.

use weir_limits::LAB_CPUS_MAX;

/// A logical CPU, as Linux numbers them: SMT siblings are neighbours here.
pub type CpuId = usize;

/// A host's CPUs: sockets, last-level caches of each socket, and so on down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Topology {
    /// Number of sockets.
    pub sockets: usize,
    /// Last-level caches per socket.
    pub llcs_per_socket: usize,
    /// Cores per last-level cache.
    pub cores_per_llc: usize,
    /// Logical CPUs per core: 2 with SMT.
    pub threads_per_core: usize,
}

/// Distance of two CPUs, by the boundary between their caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Distance {
    /// The CPUs share the last-level cache, or are the same.
    Near,
    /// The CPUs share the socket.
    Socket,
    /// The CPUs share only the host.
    Host,
}

impl Topology {
    /// Returns a topology of cores that share one cache and have no siblings.
    pub const fn flat(cores: usize) -> Self {
        Self { sockets: 1, llcs_per_socket: 1, cores_per_llc: cores, threads_per_core: 1 }
    }

    /// Returns the number of logical CPUs. `None`: none, or more than [`LAB_CPUS_MAX`].
    pub fn cpus(&self) -> Option<usize> {
        let Self { sockets, llcs_per_socket, cores_per_llc, threads_per_core } = *self;
        sockets
            .checked_mul(llcs_per_socket)?
            .checked_mul(cores_per_llc)?
            .checked_mul(threads_per_core)
            .filter(|cpus| (1..=LAB_CPUS_MAX).contains(cpus))
    }

    /// Returns the number of a CPU's last-level cache.
    pub(crate) fn llc(&self, cpu: CpuId) -> usize {
        cpu / (self.cores_per_llc * self.threads_per_core).max(1)
    }

    /// Returns the number of a CPU's core.
    pub(crate) fn core(&self, cpu: CpuId) -> usize {
        cpu / self.threads_per_core.max(1)
    }

    /// Returns the distance of `a` from `b`.
    pub fn distance(&self, a: CpuId, b: CpuId) -> Distance {
        let (a, b) = (self.llc(a), self.llc(b));
        let sockets = self.llcs_per_socket.max(1);
        if a == b {
            Distance::Near
        } else if a / sockets == b / sockets {
            Distance::Socket
        } else {
            Distance::Host
        }
    }

    /// Returns the logical CPUs of `cpu`'s core, itself included.
    pub fn core_of(&self, cpu: CpuId) -> std::ops::Range<CpuId> {
        let threads = self.threads_per_core.max(1);
        let first = cpu / threads * threads;
        first..first + threads
    }
}

/// A set of a host's CPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CpuSet([u64; LAB_CPUS_MAX / 64]);

impl CpuSet {
    /// Builds a set of `cpus`. Numbers from [`LAB_CPUS_MAX`] on exist on no host.
    pub(crate) fn new(cpus: &[CpuId]) -> Self {
        let mut set = Self::default();
        for cpu in cpus {
            if let Some(word) = set.0.get_mut(cpu / 64) {
                *word |= 1 << (cpu % 64);
            }
        }
        set
    }

    pub(crate) fn contains(&self, cpu: CpuId) -> bool {
        self.0.get(cpu / 64).is_some_and(|word| word & 1 << (cpu % 64) != 0)
    }

    /// Returns whether the sets have a CPU in common.
    pub(crate) fn meets(&self, other: &Self) -> bool {
        self.0.iter().zip(other.0).any(|(a, b)| a & b != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_follow_caches_and_sockets() {
        let host =
            Topology { sockets: 2, llcs_per_socket: 2, cores_per_llc: 2, threads_per_core: 2 };
        assert_eq!(host.cpus(), Some(16));
        assert_eq!(host.core_of(5), 4..6);
        assert_eq!(host.distance(0, 3), Distance::Near);
        assert_eq!(host.distance(0, 4), Distance::Socket);
        assert_eq!(host.distance(7, 8), Distance::Host);
    }

    #[test]
    fn a_host_has_some_cpus_and_not_too_many() {
        assert_eq!(Topology::flat(0).cpus(), None);
        assert_eq!(Topology::flat(LAB_CPUS_MAX + 1).cpus(), None);
        let endless = Topology { sockets: usize::MAX, ..Topology::flat(2) };
        assert_eq!(endless.cpus(), None);
    }
}
