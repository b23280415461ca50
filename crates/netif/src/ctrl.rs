//! The control ring (`public/io/netif.h`, "Control ring", "Control messages"): a guest sets the
//! hash that spreads frames over its queues.
//!
//! A key or a table is in a page that the guest granted. [`HashState::apply`] names the bytes, the
//! caller copies them, and [`HashState::copied`] continues.

use weir_guestmem::Window;
use weir_limits::{INDIRECTION_LEN, QUEUE_PAIRS_MAX};
use weir_wire::flow::KEY_LEN;
use weir_wire::{Layers, Network, Ports, Toeplitz, Transport};

use crate::back::BackRing;
use crate::error::{RingError, SetupError};
use crate::message::{Extra, Segment};

/// Length of an entry of a control ring (bytes).
pub const CTRL_SLOT_BYTES: usize = 16;

/// `XEN_NETIF_CTRL_TYPE_*`. The three types for static grants are neither supported nor offered.
pub mod ctrl_type {
    /// Asks for the supported hash types.
    pub const GET_HASH_FLAGS: u16 = 1;
    /// Sets the hash types to calculate.
    pub const SET_HASH_FLAGS: u16 = 2;
    /// Sets the key, by grant and length.
    pub const SET_HASH_KEY: u16 = 3;
    /// Asks for the largest table size.
    pub const GET_HASH_MAPPING_SIZE: u16 = 4;
    /// Sets the table size.
    pub const SET_HASH_MAPPING_SIZE: u16 = 5;
    /// Sets entries of the table, by grant, number and offset.
    pub const SET_HASH_MAPPING: u16 = 6;
    /// Sets the algorithm.
    pub const SET_HASH_ALGORITHM: u16 = 7;
}

/// `struct xen_netif_ctrl_request`, unchecked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CtrlRequest {
    /// Id chosen by the front end.
    pub id: u16,
    /// [`ctrl_type`].
    pub kind: u16,
    /// Arguments, by type.
    pub data: [u32; 3],
}

impl CtrlRequest {
    /// Reads an entry.
    pub const fn from_bytes(bytes: &[u8; CTRL_SLOT_BYTES]) -> Self {
        let [i0, i1, k0, k1, a0, a1, a2, a3, b0, b1, b2, b3, c0, c1, c2, c3] = *bytes;
        Self {
            id: u16::from_le_bytes([i0, i1]),
            kind: u16::from_le_bytes([k0, k1]),
            data: [
                u32::from_le_bytes([a0, a1, a2, a3]),
                u32::from_le_bytes([b0, b1, b2, b3]),
                u32::from_le_bytes([c0, c1, c2, c3]),
            ],
        }
    }

    /// Writes the entry.
    pub const fn to_bytes(&self) -> [u8; CTRL_SLOT_BYTES] {
        let [i0, i1] = self.id.to_le_bytes();
        let [k0, k1] = self.kind.to_le_bytes();
        let [a, b, c] = self.data;
        let [a0, a1, a2, a3] = a.to_le_bytes();
        let [b0, b1, b2, b3] = b.to_le_bytes();
        let [c0, c1, c2, c3] = c.to_le_bytes();
        [i0, i1, k0, k1, a0, a1, a2, a3, b0, b1, b2, b3, c0, c1, c2, c3]
    }

    fn answer(&self, (status, data): (CtrlStatus, u32)) -> CtrlResponse {
        CtrlResponse { id: self.id, kind: self.kind, status, data }
    }
}

/// `XEN_NETIF_CTRL_STATUS_*`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum CtrlStatus {
    /// Done.
    Success = 0,
    /// There is no such operation, or not in this state.
    NotSupported = 1,
    /// A value is invalid.
    InvalidParameter = 2,
    /// The back end has no room.
    BufferOverflow = 3,
}

/// `struct xen_netif_ctrl_response`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CtrlResponse {
    /// Id of the request.
    pub id: u16,
    /// Type of the request.
    pub kind: u16,
    /// Result of the request.
    pub status: CtrlStatus,
    /// Answer's value.
    pub data: u32,
}

impl CtrlResponse {
    /// Reads an entry; `None` for a status that does not exist.
    pub const fn from_bytes(bytes: &[u8; CTRL_SLOT_BYTES]) -> Option<Self> {
        let request = CtrlRequest::from_bytes(bytes);
        let status = match request.data[0] {
            0 => CtrlStatus::Success,
            1 => CtrlStatus::NotSupported,
            2 => CtrlStatus::InvalidParameter,
            3 => CtrlStatus::BufferOverflow,
            _ => return None,
        };
        Some(Self { id: request.id, kind: request.kind, status, data: request.data[1] })
    }

    const fn to_bytes(self) -> [u8; 12] {
        let [i0, i1] = self.id.to_le_bytes();
        let [k0, k1] = self.kind.to_le_bytes();
        let [s0, s1, s2, s3] = (self.status as u32).to_le_bytes();
        let [d0, d1, d2, d3] = self.data.to_le_bytes();
        [i0, i1, k0, k1, s0, s1, s2, s3, d0, d1, d2, d3]
    }
}

/// The back end of a control ring.
#[derive(Debug)]
pub struct CtrlBack {
    ring: BackRing<CTRL_SLOT_BYTES>,
}

impl CtrlBack {
    /// Takes over the ring; see [`BackRing::attach`].
    pub fn attach(sring: Window) -> Result<Self, SetupError> {
        Ok(Self { ring: BackRing::attach(sring)? })
    }

    /// Takes the next request. Reads the producer again if none is available.
    pub fn take(&mut self) -> Result<Option<CtrlRequest>, RingError> {
        if self.ring.available() == 0 {
            self.ring.refill()?;
        }
        Ok(self.ring.request().map(|bytes| CtrlRequest::from_bytes(&bytes)))
    }

    /// Answers a taken request. Returns whether the front end wants an event.
    pub fn answer(&mut self, response: CtrlResponse) -> bool {
        self.ring.respond(response.to_bytes());
        self.ring.push();
        self.ring.needs_notify()
    }

    /// Asks for an event at the next request. The caller may sleep only if the call returns `false`.
    pub fn final_check(&mut self) -> Result<bool, RingError> {
        Ok(self.ring.final_check()? > 0)
    }
}

/// Result of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// The answer.
    Answer(CtrlResponse),
    /// The guest's bytes are needed first.
    Copy(Pending),
}

/// A request that waits for the guest's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pending {
    /// Place of the bytes: at the beginning of one page, at most the whole page.
    pub segment: Segment,
    request: CtrlRequest,
}

/// Length of an entry of a table in the guest's page (bytes).
const MAPPING_ENTRY_LEN: usize = 4;
/// The longest copy fits into a page.
const _: () = assert!(
    INDIRECTION_LEN * MAPPING_ENTRY_LEN <= weir_limits::XEN_PAGE_LEN
        && KEY_LEN <= weir_limits::XEN_PAGE_LEN
);

impl HashState {
    /// Executes a request as far as possible without the guest's pages.
    pub fn apply(&mut self, request: CtrlRequest) -> Step {
        use CtrlStatus::*;
        let [first, second, third] = request.data;
        let copy = |len: usize| {
            let segment = Segment { gref: first, offset: 0, len: len as u16 }; // at most a page
            Step::Copy(Pending { segment, request })
        };
        let done = |good: bool| (if good { Success } else { InvalidParameter }, 0);
        let has_algorithm = self.algorithm != Algorithm::None;
        let answer = match request.kind {
            ctrl_type::SET_HASH_ALGORITHM => {
                let algorithm = match first {
                    0 => Some(Algorithm::None),
                    1 => Some(Algorithm::Toeplitz),
                    _ => None,
                };
                self.algorithm = algorithm.unwrap_or(self.algorithm);
                done(algorithm.is_some())
            }
            ctrl_type::GET_HASH_FLAGS if has_algorithm => (Success, HASH_TYPES),
            ctrl_type::GET_HASH_FLAGS => (NotSupported, 0),
            ctrl_type::SET_HASH_FLAGS if has_algorithm && first & !HASH_TYPES == 0 => {
                self.flags = first;
                done(true)
            }
            ctrl_type::SET_HASH_FLAGS => done(false),
            ctrl_type::SET_HASH_KEY => match second as usize {
                0 => {
                    self.set_key(&[]);
                    done(true)
                }
                len @ 1..=KEY_LEN => return copy(len),
                _ => (BufferOverflow, 0),
            },
            ctrl_type::GET_HASH_MAPPING_SIZE => (Success, INDIRECTION_LEN as u32),
            ctrl_type::SET_HASH_MAPPING_SIZE => done(self.set_mapping_size(first)),
            ctrl_type::SET_HASH_MAPPING => match second as usize {
                len if len > INDIRECTION_LEN => (BufferOverflow, 0),
                _ if !self.has_entries(third, second) => done(false),
                0 => done(true),
                len => return copy(len * MAPPING_ENTRY_LEN),
            },
            _ => (NotSupported, 0),
        };
        Step::Answer(request.answer(answer))
    }

    /// Continues with the needed bytes: the whole segment, or `None` if it could not be copied.
    /// Invalid bytes change nothing.
    pub fn copied(&mut self, pending: Pending, bytes: Option<&[u8]>) -> CtrlResponse {
        let Pending { segment, request } = pending;
        let good = match bytes.filter(|bytes| bytes.len() == usize::from(segment.len)) {
            Some(key) if request.kind == ctrl_type::SET_HASH_KEY => {
                self.set_key(key);
                true
            }
            Some(words) => self.set_mapping(request.data[2], words),
            None => false,
        };
        let status = if good { CtrlStatus::Success } else { CtrlStatus::InvalidParameter };
        request.answer((status, 0))
    }
}

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
