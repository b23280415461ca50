//! The hash that a guest sets up through the control ring (`public/io/netif.h`, "Hash types", "Hash
//! algorithms"), and its mapping to queues.

use weir_limits::{INDIRECTION_LEN, QUEUE_PAIRS_MAX};
use weir_wire::flow::KEY_LEN;
use weir_wire::{Layers, Network, Ports, Toeplitz, Transport};

use crate::message::Extra;

/// Bits of the hash flags: `1 << _XEN_NETIF_CTRL_HASH_TYPE_*`.
mod types {
    pub const IPV4: u8 = 0;
    pub const IPV4_TCP: u8 = 1;
    pub const IPV6: u8 = 2;
    pub const IPV6_TCP: u8 = 3;
}
/// All hash types (`XEN_NETIF_CTRL_HASH_TYPE_*`).
pub const HASH_TYPES: u32 = 0xf;

/// `XEN_NETIF_CTRL_HASH_ALGORITHM_*`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Algorithm {
    None = 0,
    Toeplitz = 1,
}

/// A frame's hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlowHash {
    /// Number of a bit of `XEN_NETIF_CTRL_HASH_TYPE_*`.
    pub kind: u8,
    /// The hash.
    pub value: u32,
}

impl FlowHash {
    pub(crate) fn extra(self) -> Extra {
        let Self { kind, value } = self;
        Extra::Hash { kind, algorithm: Algorithm::Toeplitz as u8, value }
    }
}

/// A guest's settings, empty at first.
#[derive(Clone)]
pub struct HashState {
    pub(crate) algorithm: Algorithm,
    pub(crate) flags: u32,
    toeplitz: Toeplitz,
    /// Number of entries of `mapping` in use; 0 maps by the remainder alone.
    size: usize,
    mapping: [u8; INDIRECTION_LEN],
    queues: u8,
}

const _: () = assert!(QUEUE_PAIRS_MAX <= u8::MAX as usize);

impl HashState {
    /// Returns the state of an interface with `queues` queues (`multi-queue-num-queues`), 1 to
    /// [`QUEUE_PAIRS_MAX`].
    pub fn new(queues: usize) -> Self {
        Self {
            algorithm: Algorithm::None,
            flags: 0,
            toeplitz: Toeplitz::new(&[0; KEY_LEN]),
            size: 0,
            mapping: [0; INDIRECTION_LEN],
            queues: queues.clamp(1, QUEUE_PAIRS_MAX) as u8,
        }
    }

    /// Sets a new key; missing bytes are 0.
    pub(crate) fn set_key(&mut self, key: &[u8]) {
        let mut whole = [0; KEY_LEN];
        for (to, from) in whole.iter_mut().zip(key) {
            *to = *from;
        }
        self.toeplitz = Toeplitz::new(&whole);
    }

    /// Sets a new table of zeros; returns `false` if it is too large.
    pub(crate) fn set_mapping_size(&mut self, size: u32) -> bool {
        let Ok(size @ 0..=INDIRECTION_LEN) = usize::try_from(size) else { return false };
        self.size = size;
        self.mapping = [0; INDIRECTION_LEN];
        true
    }

    /// Returns whether the table has `len` entries from `offset` on.
    pub(crate) fn has_entries(&self, offset: u32, len: u32) -> bool {
        u64::from(offset) + u64::from(len) <= self.size as u64
    }

    /// Replaces entries of the table by little-endian words. Returns `false`, and changes nothing,
    /// if one names no queue or there are no such entries.
    pub(crate) fn set_mapping(&mut self, offset: u32, words: &[u8]) -> bool {
        let queues = u32::from(self.queues);
        let entries = words.chunks_exact(4).map(|word| match *word {
            [a, b, c, d] => u32::from_le_bytes([a, b, c, d]),
            _ => u32::MAX,
        });
        if entries.clone().any(|queue| queue >= queues) {
            return false;
        }
        let Some(table) = self.mapping[..self.size].get_mut(offset as usize..) else {
            return false;
        };
        if entries.len() > table.len() {
            return false;
        }
        for (to, queue) in table.iter_mut().zip(entries) {
            *to = queue as u8; // below `queues`, which is a u8
        }
        true
    }

    /// Returns the hash of a frame: with ports for TCP if the guest asked for that, else of the
    /// addresses ("the maximal type"). Returns `None` if the guest asked for no hash, so that weir
    /// steers by its own rules.
    pub fn hash(&self, layers: &Layers) -> Option<FlowHash> {
        if self.algorithm == Algorithm::None {
            return None;
        }
        let wants = |kind: u8| self.flags & 1 << kind != 0;
        let tcp = match layers.transport {
            Transport::Tcp { ports, .. } => Some(ports),
            _ => None,
        };
        let chosen = |plain, with_ports| -> Option<(u8, Option<Ports>)> {
            match tcp {
                Some(ports) if wants(with_ports) => Some((with_ports, Some(ports))),
                _ => wants(plain).then_some((plain, None)),
            }
        };
        let (kind, value) = match layers.network {
            Network::Ipv4(ip) => {
                let (kind, ports) = chosen(types::IPV4, types::IPV4_TCP)?;
                (kind, self.toeplitz.hash_v4(ip.src, ip.dst, ports))
            }
            Network::Ipv6(ip) => {
                let (kind, ports) = chosen(types::IPV6, types::IPV6_TCP)?;
                (kind, self.toeplitz.hash_v6(ip.src, ip.dst, ports))
            }
            Network::Other => return None,
        };
        Some(FlowHash { kind, value })
    }

    /// Returns whether the guest asked for any hash.
    pub fn is_set(&self) -> bool {
        self.algorithm != Algorithm::None && self.flags != 0
    }

    /// Returns the entry of the [table](Self::table) for a hash, below [`INDIRECTION_LEN`].
    pub fn entry(&self, hash: FlowHash) -> usize {
        let value = hash.value as usize;
        value.checked_rem(self.size).unwrap_or(value % usize::from(self.queues))
    }

    /// Returns the queue of each entry: the guest's table, or without one the queues in order,
    /// repeated to the full length.
    pub fn table(&self) -> [u8; INDIRECTION_LEN] {
        std::array::from_fn(|entry| match entry.checked_rem(self.size) {
            Some(entry) => self.mapping[entry],
            None => (entry % usize::from(self.queues)) as u8, // below `queues`, which is a u8
        })
    }

    /// Returns the queue for a hash.
    pub fn queue(&self, hash: FlowHash) -> usize {
        self.table()[self.entry(hash)].into()
    }
}

impl std::fmt::Debug for HashState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HashState")
            .field("algorithm", &self.algorithm)
            .field("flags", &self.flags)
            .field("size", &self.size)
            .field("queues", &self.queues)
            .finish_non_exhaustive()
    }
}
