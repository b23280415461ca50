//! The fixed layouts of message bodies (spec, "Payload").

use weir_limits::MEM_TABLE_REGIONS_MAX;

use crate::error::{Expected, ProtocolError};
use crate::request::RequestCode;

/// A body, or a part of one, with its own layout.
pub trait Payload: Sized {
    /// Reads a whole body.
    ///
    /// # Errors
    /// [`ProtocolError::BodySize`] with `request` if `body` does not have exactly this layout's size. A variable
    /// layout's size is the one that its own count asks for.
    fn decode(request: RequestCode, body: &[u8]) -> Result<Self, ProtocolError>;

    /// The whole body.
    fn encode(&self) -> Vec<u8>;
}

fn wrong_size(request: RequestCode, expected: Expected, body: &[u8]) -> ProtocolError {
    ProtocolError::BodySize { request, expected, actual: body.len() }
}

/// The two 32-bit numbers in eight bytes.
fn u32_pair([a0, a1, a2, a3, b0, b1, b2, b3]: [u8; 8]) -> (u32, u32) {
    (u32::from_ne_bytes([a0, a1, a2, a3]), u32::from_ne_bytes([b0, b1, b2, b3]))
}

impl Payload for u64 {
    fn decode(request: RequestCode, body: &[u8]) -> Result<Self, ProtocolError> {
        match body.as_chunks::<8>() {
            ([value], []) => Ok(Self::from_ne_bytes(*value)),
            _ => Err(wrong_size(request, Expected::Exactly(8), body)),
        }
    }

    fn encode(&self) -> Vec<u8> {
        self.to_ne_bytes().to_vec()
    }
}

/// A number that belongs to a ring (spec, "A vring state description"); 8 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VringState {
    /// The ring.
    pub index: u32,
    /// Size, base or enable value, as the request says.
    pub num: u32,
}

impl Payload for VringState {
    fn decode(request: RequestCode, body: &[u8]) -> Result<Self, ProtocolError> {
        match body.as_chunks::<8>() {
            ([pair], []) => {
                let (index, num) = u32_pair(*pair);
                Ok(Self { index, num })
            }
            _ => Err(wrong_size(request, Expected::Exactly(8), body)),
        }
    }

    fn encode(&self) -> Vec<u8> {
        [self.index.to_ne_bytes(), self.num.to_ne_bytes()].concat()
    }
}

/// A message about a translation (spec, "An IOTLB message"; `struct vhost_iotlb_msg`); 32 bytes. Its numbers are
/// unchecked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct IotlbMsg {
    /// First I/O virtual address.
    pub iova: u64,
    /// Bytes.
    pub size: u64,
    /// Address of the first byte in the front end's address space.
    pub user: u64,
    /// 1 to read, 2 to write, 3 for both.
    pub permission: u8,
    /// One of the constants of this type.
    pub kind: u8,
}

impl IotlbMsg {
    /// The back end lacks a translation.
    pub const MISS: u8 = 1;
    /// A new translation.
    pub const UPDATE: u8 = 2;
    /// A translation has ended.
    pub const INVALIDATE: u8 = 3;
}

impl Payload for IotlbMsg {
    fn decode(request: RequestCode, body: &[u8]) -> Result<Self, ProtocolError> {
        match body.as_chunks::<8>() {
            ([iova, size, user, [permission, kind, ..]], []) => Ok(Self {
                iova: u64::from_ne_bytes(*iova),
                size: u64::from_ne_bytes(*size),
                user: u64::from_ne_bytes(*user),
                permission: *permission,
                kind: *kind,
            }),
            _ => Err(wrong_size(request, Expected::Exactly(32), body)),
        }
    }

    fn encode(&self) -> Vec<u8> {
        let Self { iova, size, user, permission, kind } = *self;
        let words = [iova, size, user].map(u64::to_ne_bytes);
        [words.as_flattened(), &[permission, kind, 0, 0, 0, 0, 0, 0]].concat()
    }
}

/// Flag of [`VringAddr`]: writes to the used ring are to be logged.
pub const VHOST_VRING_F_LOG: u32 = 1 << 0;

/// The places of a ring's parts (spec, "A vring address description"); 40 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VringAddr {
    /// The ring.
    pub index: u32,
    /// [`VHOST_VRING_F_LOG`].
    pub flags: u32,
    /// Descriptor table, a user address.
    pub descriptor: u64,
    /// Used ring, a user address.
    pub used: u64,
    /// Available ring, a user address.
    pub available: u64,
    /// Guest address under which writes to the used ring are logged.
    pub log: u64,
}

impl Payload for VringAddr {
    fn decode(request: RequestCode, body: &[u8]) -> Result<Self, ProtocolError> {
        match body.as_chunks::<8>() {
            ([pair, descriptor, used, available, log], []) => {
                let (index, flags) = u32_pair(*pair);
                Ok(Self {
                    index,
                    flags,
                    descriptor: u64::from_ne_bytes(*descriptor),
                    used: u64::from_ne_bytes(*used),
                    available: u64::from_ne_bytes(*available),
                    log: u64::from_ne_bytes(*log),
                })
            }
            _ => Err(wrong_size(request, Expected::Exactly(40), body)),
        }
    }

    fn encode(&self) -> Vec<u8> {
        let mut bytes = [self.index.to_ne_bytes(), self.flags.to_ne_bytes()].concat();
        for address in [self.descriptor, self.used, self.available, self.log] {
            bytes.extend(address.to_ne_bytes());
        }
        bytes
    }
}

/// A piece of the guest's memory (spec, "Memory region description"); 32 bytes. Its numbers are unchecked: they may
/// overflow, and the descriptor may be too small.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryRegion {
    /// Guest physical address of the first byte.
    pub guest_address: u64,
    /// Bytes of the region.
    pub size: u64,
    /// Address of the first byte in the front end's address space.
    pub user_address: u64,
    /// The offset of the region in the descriptor.
    pub mmap_offset: u64,
}

/// Bytes of a [`MemoryRegion`].
const REGION_LEN: usize = 32;

impl MemoryRegion {
    fn from_bytes(bytes: &[u8; REGION_LEN]) -> Self {
        // Chunks of 32 bytes by 8: always four of them.
        let (words, _) = bytes.as_chunks::<8>();
        let word = |n: usize| words.get(n).map_or(0, |word| u64::from_ne_bytes(*word));
        Self { guest_address: word(0), size: word(1), user_address: word(2), mmap_offset: word(3) }
    }
}

impl Payload for MemoryRegion {
    fn decode(request: RequestCode, body: &[u8]) -> Result<Self, ProtocolError> {
        match body.as_chunks::<REGION_LEN>() {
            ([region], []) => Ok(Self::from_bytes(region)),
            _ => Err(wrong_size(request, Expected::Exactly(REGION_LEN), body)),
        }
    }

    fn encode(&self) -> Vec<u8> {
        [
            self.guest_address.to_ne_bytes(),
            self.size.to_ne_bytes(),
            self.user_address.to_ne_bytes(),
            self.mmap_offset.to_ne_bytes(),
        ]
        .concat()
    }
}

/// Body of `SET_MEM_TABLE` (spec, "Multiple memory regions description"): a count, 4 bytes of
/// padding and that many regions; unused places may follow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryTable(
    /// The regions, at most [`MEM_TABLE_REGIONS_MAX`] of them.
    pub Vec<MemoryRegion>,
);

impl Payload for MemoryTable {
    /// Fails also with [`ProtocolError::RegionCount`].
    fn decode(request: RequestCode, body: &[u8]) -> Result<Self, ProtocolError> {
        let Some((head, rest)) = body.split_first_chunk::<8>() else {
            return Err(wrong_size(request, Expected::AtLeast(8), body));
        };
        // The padding carries no meaning; its content is not checked.
        let (regions, _padding) = u32_pair(*head);
        let count = match usize::try_from(regions) {
            Ok(count) if count <= MEM_TABLE_REGIONS_MAX => count,
            _ => return Err(ProtocolError::RegionCount { request, regions }),
        };
        match rest.as_chunks::<REGION_LEN>() {
            // Places beyond the count have no meaning: user-mode Linux always sends two.
            (table, []) if (count..=MEM_TABLE_REGIONS_MAX).contains(&table.len()) => {
                Ok(Self(table.iter().take(count).map(MemoryRegion::from_bytes).collect()))
            }
            _ => {
                let expected = Expected::Exactly(head.len() + count * REGION_LEN);
                Err(wrong_size(request, expected, body))
            }
        }
    }

    fn encode(&self) -> Vec<u8> {
        // A table too long for the count is too long for a body, which the header refuses.
        let count = u32::try_from(self.0.len()).unwrap_or(u32::MAX);
        let mut bytes = [count.to_ne_bytes(), 0u32.to_ne_bytes()].concat();
        for region in &self.0 {
            bytes.extend(region.encode());
        }
        bytes
    }
}

/// Body of `ADD_MEM_REG` and `REM_MEM_REG` (spec, "Single memory region description"): 8 bytes of
/// padding and a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SingleRegion(
    /// The region.
    pub MemoryRegion,
);

impl Payload for SingleRegion {
    fn decode(request: RequestCode, body: &[u8]) -> Result<Self, ProtocolError> {
        match body.split_first_chunk::<8>() {
            Some((_padding, rest)) if rest.len() == REGION_LEN => {
                MemoryRegion::decode(request, rest).map(Self)
            }
            _ => Err(wrong_size(request, Expected::Exactly(8 + REGION_LEN), body)),
        }
    }

    fn encode(&self) -> Vec<u8> {
        [0u64.encode(), self.0.encode()].concat()
    }
}

/// The dirty log's place in its descriptor (spec, "Log description"); 16 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirtyLog {
    /// Bytes of the log.
    pub size: u64,
    /// The offset of the log in the descriptor.
    pub offset: u64,
}

impl Payload for DirtyLog {
    fn decode(request: RequestCode, body: &[u8]) -> Result<Self, ProtocolError> {
        match body.as_chunks::<8>() {
            ([size, offset], []) => {
                Ok(Self { size: u64::from_ne_bytes(*size), offset: u64::from_ne_bytes(*offset) })
            }
            _ => Err(wrong_size(request, Expected::Exactly(16), body)),
        }
    }

    fn encode(&self) -> Vec<u8> {
        [self.size.to_ne_bytes(), self.offset.to_ne_bytes()].concat()
    }
}

/// A part of the device's configuration space (spec, "Virtio device config space"): offset, size
/// and flags, 32 bits each, and `size` bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigSpace {
    /// First byte within the configuration space.
    pub offset: u32,
    /// 0: fields a driver writes; 1: live migration.
    pub flags: u32,
    /// The bytes; in a `GET_CONFIG` only their number counts. An empty reply means an error.
    pub bytes: Vec<u8>,
}

/// Bytes of a [`ConfigSpace`] before the space's own.
const CONFIG_HEADER_LEN: usize = 12;

impl Payload for ConfigSpace {
    fn decode(request: RequestCode, body: &[u8]) -> Result<Self, ProtocolError> {
        let Some((&[o0, o1, o2, o3, s0, s1, s2, s3, f0, f1, f2, f3], bytes)) =
            body.split_first_chunk::<CONFIG_HEADER_LEN>()
        else {
            return Err(wrong_size(request, Expected::AtLeast(CONFIG_HEADER_LEN), body));
        };
        let size = usize::try_from(u32::from_ne_bytes([s0, s1, s2, s3])).unwrap_or(usize::MAX);
        if bytes.len() != size {
            let expected = Expected::Exactly(CONFIG_HEADER_LEN.saturating_add(size));
            return Err(wrong_size(request, expected, body));
        }
        Ok(Self {
            offset: u32::from_ne_bytes([o0, o1, o2, o3]),
            flags: u32::from_ne_bytes([f0, f1, f2, f3]),
            bytes: bytes.to_vec(),
        })
    }

    fn encode(&self) -> Vec<u8> {
        // More bytes than 32 bits can count don't fit a body either, which the header refuses.
        let size = u32::try_from(self.bytes.len()).unwrap_or(u32::MAX);
        let mut body =
            [self.offset.to_ne_bytes(), size.to_ne_bytes(), self.flags.to_ne_bytes()].concat();
        body.extend_from_slice(&self.bytes);
        body
    }
}

/// The area that tracks requests in flight (spec, "Inflight description").
///
/// The spec's fields make 20 bytes; QEMU and the `vhost` crate send the C structure, which
/// compilers pad to 24. Both are read; 24 are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Inflight {
    /// Bytes of the area.
    pub mmap_size: u64,
    /// The offset of the area in the descriptor.
    pub mmap_offset: u64,
    /// Rings for which the area has room.
    pub num_queues: u16,
    /// Entries per ring.
    pub queue_size: u16,
}

impl Payload for Inflight {
    fn decode(request: RequestCode, body: &[u8]) -> Result<Self, ProtocolError> {
        match body.as_chunks::<4>() {
            ([s0, s1, o0, o1, queues] | [s0, s1, o0, o1, queues, _], []) => {
                let word = |low: &[u8; 4], high: &[u8; 4]| {
                    let ([l0, l1, l2, l3], [h0, h1, h2, h3]) = (*low, *high);
                    u64::from_ne_bytes([l0, l1, l2, l3, h0, h1, h2, h3])
                };
                let [n0, n1, q0, q1] = *queues;
                Ok(Self {
                    mmap_size: word(s0, s1),
                    mmap_offset: word(o0, o1),
                    num_queues: u16::from_ne_bytes([n0, n1]),
                    queue_size: u16::from_ne_bytes([q0, q1]),
                })
            }
            _ => Err(wrong_size(request, Expected::Either(20, 24), body)),
        }
    }

    fn encode(&self) -> Vec<u8> {
        let mut bytes = [self.mmap_size.to_ne_bytes(), self.mmap_offset.to_ne_bytes()].concat();
        bytes.extend(self.num_queues.to_ne_bytes());
        bytes.extend(self.queue_size.to_ne_bytes());
        bytes.extend([0; 4]);
        bytes
    }
}
