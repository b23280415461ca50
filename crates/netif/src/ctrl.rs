//! The control ring (`public/io/netif.h`, "Control ring", "Control messages"): a guest sets the
//! hash that spreads frames over its queues.
//!
//! A key or a table is in a page that the guest granted. [`HashState::apply`] names the bytes, the
//! caller copies them, and [`HashState::copied`] continues.

use weir_guestmem::Window;
use weir_limits::INDIRECTION_LEN;
use weir_wire::flow::KEY_LEN;

use crate::back::BackRing;
use crate::error::{RingError, SetupError};
use crate::hash::{Algorithm, HASH_TYPES, HashState};
use crate::plan::Segment;

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

    /// Asks for an event at the next request. The caller may sleep only if this returns `false`.
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
