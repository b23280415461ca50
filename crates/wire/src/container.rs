//! Containers: several frames in one receive buffer of a guest that unpacks them itself (Thakur 2014, after
//! Bourguiba 2012).
//!
//! Containers are not part of virtio: a back end and a driver must have agreed on them. Then [`F_CONTAINER`] in the
//! virtio header marks a container:
//!
//! ```text
//! virtio header   flags = F_CONTAINER, hdr_len = records, gso_size = bytes of all records, num_buffers = 1
//! record          len: le16        bytes of the frame
//!                 flags: le16      RECORD_VNET or 0
//!                 virtio header    12 bytes, only with RECORD_VNET: the frame's own
//!                 frame
//!                 padding          to a multiple of 4 from the buffer's beginning, of any value
//! record          ...
//! ```
//!
//! Frames keep the order in which they were sent. A container lies in one buffer, so each frame is one piece of
//! memory. A frame without offloads needs no virtio header. A frame that does not fit goes alone.
//!
//! Both sides work on memory that another party can write, and this module never touches it. [`Builder`] computes
//! positions. [`parse`] reads each byte once through a function, and returns positions inside the container for any
//! input.

use weir_limits::{CONTAINER_LEN_MAX, FRAME_LEN_MIN};

use crate::vnet::{GSO_NONE, VnetHdr};

/// `flags` of the virtio header: a container follows. virtio 1.3 uses the lower bits.
pub const F_CONTAINER: u8 = 0x80;
/// `flags` of a record: the frame's own virtio header comes first.
pub const RECORD_VNET: u16 = 1;
/// Bytes before each frame, and before its virtio header if it has one.
pub const RECORD_LEN: usize = 4;
/// Records begin at multiples of this.
const ALIGN: usize = 4;

/// Shortest record: the shortest frame in it, and padding.
const RECORD_LEN_MIN: usize = (RECORD_LEN + FRAME_LEN_MIN as usize).next_multiple_of(ALIGN);
/// Most records in one container.
pub const RECORDS_MAX: usize = (CONTAINER_LEN_MAX - VnetHdr::LEN) / RECORD_LEN_MIN;

const _: () = assert!(CONTAINER_LEN_MAX <= u16::MAX as usize && VnetHdr::LEN.is_multiple_of(ALIGN));

/// The places of a record's parts, in bytes from the beginning of the buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// [`RECORD_LEN`] bytes, followed by the frame's own virtio header if it has one.
    pub record: usize,
    /// The bytes to write there.
    pub header: [u8; RECORD_LEN],
    /// The frame.
    pub frame: usize,
}

/// Lays out a container: returns the place of each frame and, at the end, the container's virtio header.
#[derive(Clone, Copy, Debug)]
pub struct Builder {
    room: usize,
    len: usize,
    records: u16,
}

impl Builder {
    /// An empty container in a buffer of `buffer_len` bytes, of which it uses no more than
    /// [`CONTAINER_LEN_MAX`].
    #[inline]
    pub fn new(buffer_len: usize) -> Builder {
        Builder { room: buffer_len.min(CONTAINER_LEN_MAX), len: VnetHdr::LEN, records: 0 }
    }

    /// Adds a frame of `len` bytes; `None`, with no change, if it does not fit.
    #[inline]
    pub fn add(&mut self, len: usize, has_vnet: bool) -> Option<Place> {
        let frame = self.len + RECORD_LEN + if has_vnet { VnetHdr::LEN } else { 0 };
        let end = frame.checked_add(len)?.checked_next_multiple_of(ALIGN)?;
        if end > self.room {
            return None;
        }
        let [l0, l1] = (len as u16).to_le_bytes(); // below CONTAINER_LEN_MAX
        let [f0, f1] = if has_vnet { RECORD_VNET } else { 0 }.to_le_bytes();
        let place = Place { record: self.len, header: [l0, l1, f0, f1], frame };
        self.len = end;
        self.records += 1;
        Some(place)
    }

    /// The number of the container's frames.
    #[inline]
    pub fn records(&self) -> u16 {
        self.records
    }

    /// Bytes of the container, including its virtio header: the length that a device reports as written.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if it has no frame. Such a container must not be sent.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.records == 0
    }

    /// The virtio header, to be written at the beginning when all frames are added.
    #[inline]
    pub fn vnet(&self) -> VnetHdr {
        VnetHdr {
            flags: F_CONTAINER,
            gso_type: GSO_NONE,
            hdr_len: self.records,
            gso_size: (self.len - VnetHdr::LEN) as u16, // below CONTAINER_LEN_MAX
            num_buffers: 1,
            ..VnetHdr::default()
        }
    }
}

/// A frame in a container: its place, in bytes from the beginning of the buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// The frame's first byte.
    pub at: u16,
    /// Bytes of the frame.
    pub len: u16,
    /// True if its own virtio header is right before it.
    pub has_vnet: bool,
}

/// The reason why a whole container is refused: after one wrong length, no later record can be
/// trusted, and the writer is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ContainerError {
    /// The buffer is shorter than the length in the virtio header.
    #[error("the container declares {declared} bytes in a buffer with {written}")]
    Length {
        /// Bytes according to the virtio header, which is included.
        declared: usize,
        /// Bytes that the device wrote.
        written: usize,
    },
    /// The container has no frame.
    #[error("the container is empty")]
    Empty,
    /// The header has more than one buffer, or offloads.
    #[error("the virtio header of a container has fields other than its size")]
    Header,
    /// A record begins or ends behind the container's end.
    #[error("record {record} at {at} does not end within the container's {len} bytes")]
    Beyond {
        /// The number of the record, from 0.
        record: u16,
        /// The record's offset in the buffer.
        at: usize,
        /// Bytes of the container.
        len: usize,
    },
    /// The frame is too short for an Ethernet header.
    #[error("record {record} at {at} has a frame of {frame_len} bytes")]
    Runt {
        /// The number of the record, from 0.
        record: u16,
        /// The record's offset in the buffer.
        at: usize,
        /// Bytes of the frame.
        frame_len: u16,
    },
    /// A record has a flag without a meaning.
    #[error("record {record} at {at} has unknown flags {flags:#x}")]
    Flags {
        /// The number of the record, from 0.
        record: u16,
        /// The record's offset in the buffer.
        at: usize,
        /// All flags of the record.
        flags: u16,
    },
    /// There are bytes behind the records.
    #[error("{left} bytes follow the last of {records} records")]
    Trailing {
        /// The number of records.
        records: u16,
        /// Bytes behind the records.
        left: usize,
    },
}

/// Replaces `records` by the frames, in order, of a container of `written` bytes whose virtio header is `vnet`. `read`
/// returns the [`RECORD_LEN`] bytes at an offset of the buffer, or `None` outside it.
///
/// Every record lies within the first `written` bytes, behind the virtio header, and overlaps no other, even if the
/// memory changes meanwhile.
///
/// # Errors
/// [`ContainerError`]; `records` is empty then.
#[inline]
pub fn parse(
    vnet: &VnetHdr,
    written: usize,
    mut read: impl FnMut(usize) -> Option<[u8; RECORD_LEN]>,
    records: &mut Vec<Record>,
) -> Result<(), ContainerError> {
    records.clear();
    let result = walk(vnet, written, &mut read, records);
    if result.is_err() {
        records.clear();
    }
    result
}

#[inline]
fn walk(
    vnet: &VnetHdr,
    written: usize,
    read: &mut impl FnMut(usize) -> Option<[u8; RECORD_LEN]>,
    records: &mut Vec<Record>,
) -> Result<(), ContainerError> {
    let len = VnetHdr::LEN + usize::from(vnet.gso_size);
    if len != written || len > CONTAINER_LEN_MAX {
        return Err(ContainerError::Length { declared: len, written });
    }
    let count = vnet.hdr_len;
    let expected = VnetHdr { hdr_len: count, gso_size: vnet.gso_size, ..Builder::new(0).vnet() };
    if *vnet != expected {
        return Err(ContainerError::Header);
    }
    if count == 0 {
        return Err(ContainerError::Empty);
    }
    let mut at = VnetHdr::LEN;
    for record in 0..count {
        let beyond = ContainerError::Beyond { record, at, len };
        if at + RECORD_LEN > len {
            return Err(beyond);
        }
        let [l0, l1, f0, f1] = read(at).ok_or(beyond)?;
        let (frame_len, flags) = (u16::from_le_bytes([l0, l1]), u16::from_le_bytes([f0, f1]));
        let has_vnet = flags == RECORD_VNET;
        if flags & !RECORD_VNET != 0 {
            return Err(ContainerError::Flags { record, at, flags });
        }
        if u32::from(frame_len) < FRAME_LEN_MIN {
            return Err(ContainerError::Runt { record, at, frame_len });
        }
        let frame = at + RECORD_LEN + if has_vnet { VnetHdr::LEN } else { 0 };
        let end = (frame + usize::from(frame_len)).next_multiple_of(ALIGN);
        if end > len {
            return Err(beyond);
        }
        // The offset is below CONTAINER_LEN_MAX, like the record's end.
        records.push(Record { at: frame as u16, len: frame_len, has_vnet });
        at = end;
    }
    match len - at {
        0 => Ok(()),
        left => Err(ContainerError::Trailing { records: count, left }),
    }
}

#[cfg(test)]
mod tests {
    //! Containers that are packed and parsed, and damaged ones.

    use proptest::prelude::*;

    use super::*;
    use crate::vnet::F_NEEDS_CSUM;

    /// A frame as it goes into a container.
    #[derive(Clone, Debug, PartialEq, Eq)]
    struct Sent {
        vnet: Option<VnetHdr>,
        bytes: Vec<u8>,
    }

    fn plain(len: usize, fill: u8) -> Sent {
        Sent { vnet: None, bytes: vec![fill; len] }
    }

    /// Writes as many of `frames` as fit; returns the written bytes, and the number of frames in them.
    fn pack(frames: &[Sent], buffer_len: usize) -> (Vec<u8>, usize) {
        let mut bytes = vec![0xee; buffer_len];
        let mut builder = Builder::new(buffer_len);
        for frame in frames {
            let Some(place) = builder.add(frame.bytes.len(), frame.vnet.is_some()) else { break };
            let Place { record, header, frame: at } = place;
            bytes[record..record + RECORD_LEN].copy_from_slice(&header);
            if let Some(vnet) = frame.vnet {
                bytes[record + RECORD_LEN..at].copy_from_slice(&vnet.to_bytes());
            }
            bytes[at..at + frame.bytes.len()].copy_from_slice(&frame.bytes);
        }
        bytes.truncate(builder.len());
        if let Some(front) = bytes.first_chunk_mut() {
            *front = builder.vnet().to_bytes();
        }
        (bytes, builder.records().into())
    }

    fn parse_bytes(bytes: &[u8]) -> Result<Vec<Record>, ContainerError> {
        let vnet = bytes.first_chunk().map_or(VnetHdr::default(), VnetHdr::from_bytes);
        // Earlier records must not stay.
        let mut records = vec![Record { at: 1, len: 1, has_vnet: true }];
        let read = |at: usize| bytes.get(at..)?.first_chunk().copied();
        let result = parse(&vnet, bytes.len(), read, &mut records);
        assert!(result.is_ok() || records.is_empty());
        result.map(|()| records)
    }

    fn unpack(bytes: &[u8]) -> Result<Vec<Sent>, ContainerError> {
        let records = parse_bytes(bytes)?.into_iter();
        let frames = records.map(|Record { at, len, has_vnet }| {
            let at = usize::from(at);
            let vnet = has_vnet.then(|| bytes[at - VnetHdr::LEN..at].try_into().unwrap());
            let vnet = vnet.map(|bytes| VnetHdr::from_bytes(&bytes));
            Sent { vnet, bytes: bytes[at..at + usize::from(len)].to_vec() }
        });
        Ok(frames.collect())
    }

    /// A container with the right length, whose header claims `records` records.
    fn forged(records: u16, body: &[u8]) -> Vec<u8> {
        let gso_size = body.len().try_into().unwrap();
        let vnet = VnetHdr { hdr_len: records, gso_size, ..Builder::new(0).vnet() };
        [&vnet.to_bytes(), body].concat()
    }

    #[test]
    fn the_bytes_are_those_of_the_description() {
        let vnet =
            VnetHdr { flags: F_NEEDS_CSUM, csum_start: 34, csum_offset: 16, ..VnetHdr::default() };
        let (bytes, count) =
            pack(&[plain(15, 7), Sent { vnet: Some(vnet), bytes: vec![9; 16] }], 4096);
        let expected = [
            &[0x80, 0, 2, 0, 52, 0, 0, 0, 0, 0, 1, 0][..],
            &[15, 0, 0, 0],
            &[7; 15],
            &[0xee],
            &[16, 0, 1, 0],
            &vnet.to_bytes(),
            &[9; 16],
        ];
        assert_eq!((bytes, count), (expected.concat(), 2));
    }

    #[test]
    fn sixty_small_frames_fit_in_a_page() {
        let (bytes, count) = pack(&vec![plain(64, 1); 100], 4096);
        assert_eq!((bytes.len(), count), (12 + 60 * 68, 60));
    }

    #[test]
    fn a_frame_that_does_not_fit_changes_nothing() {
        let mut builder = Builder::new(12 + 4 + 60 + 4 + 12 + 60);
        assert!(builder.add(60, true).is_some());
        let before = (builder.len(), builder.vnet());
        assert_eq!(builder.add(61, false), None);
        assert_eq!(builder.add(60, true), None);
        assert_eq!(builder.add(usize::MAX, false), None);
        assert_eq!((builder.len(), builder.vnet()), before);
        assert!(builder.add(60, false).is_some());
        assert_eq!(Builder::new(8).add(14, false), None);
    }

    #[test]
    fn the_largest_container_holds_as_many_records_as_there_can_be() {
        let (bytes, count) = pack(&vec![plain(14, 1); RECORDS_MAX + 1], 1 << 20);
        assert_eq!(count, RECORDS_MAX);
        assert!(bytes.len() <= CONTAINER_LEN_MAX);
        assert_eq!(parse_bytes(&bytes).unwrap().len(), RECORDS_MAX);
    }

    #[test]
    fn damage_is_named_with_its_record() {
        let good = [&[14, 0, 0, 0][..], &[1; 16]].concat();
        let with = |record: [u8; 4]| [&good[..], &record, &[1; 16]].concat();
        let cases = [
            (forged(0, &[]), ContainerError::Empty),
            (forged(2, &good), ContainerError::Beyond { record: 1, at: 32, len: 32 }),
            (forged(1, &with([14, 0, 0, 0])), ContainerError::Trailing { records: 1, left: 20 }),
            (
                forged(2, &with([17, 0, 0, 0])),
                ContainerError::Beyond { record: 1, at: 32, len: 52 },
            ),
            (
                forged(2, &with([14, 0, 1, 0])),
                ContainerError::Beyond { record: 1, at: 32, len: 52 },
            ),
            (
                forged(2, &with([13, 0, 0, 0])),
                ContainerError::Runt { record: 1, at: 32, frame_len: 13 },
            ),
            (
                forged(2, &with([14, 0, 2, 0])),
                ContainerError::Flags { record: 1, at: 32, flags: 2 },
            ),
        ];
        for (bytes, error) in cases {
            assert_eq!(parse_bytes(&bytes), Err(error));
        }
        let whole = forged(1, &good);
        let cut = ContainerError::Length { declared: 32, written: 31 };
        assert_eq!(parse_bytes(&whole[..31]), Err(cut));
        for (at, value) in [(0, 0x81), (1, 1), (6, 1), (8, 1), (10, 2)] {
            let mut bytes = whole.clone();
            bytes[at] = value;
            assert_eq!(parse_bytes(&bytes), Err(ContainerError::Header));
        }
        assert_eq!(
            ContainerError::Runt { record: 3, at: 40, frame_len: 2 }.to_string(),
            "record 3 at 40 has a frame of 2 bytes"
        );
    }

    #[test]
    fn a_container_longer_than_any_is_refused() {
        let vnet = VnetHdr { hdr_len: 1, gso_size: u16::MAX, ..Builder::new(0).vnet() };
        let written = VnetHdr::LEN + usize::from(u16::MAX);
        let result = parse(&vnet, written, |_| Some([0xff, 0xff, 0, 0]), &mut Vec::new());
        assert_eq!(result, Err(ContainerError::Length { declared: written, written }));
    }

    fn sent() -> impl Strategy<Value = Sent> {
        let len = prop_oneof![14..80usize, 14..3000usize];
        let vnet =
            prop::option::of(any::<[u8; 12]>().prop_map(|bytes| VnetHdr::from_bytes(&bytes)));
        (len, vnet, any::<u8>()).prop_map(|(len, vnet, fill)| Sent { vnet, bytes: vec![fill; len] })
    }

    /// Checks that parsed records lie in the container, in order and apart.
    fn check_bounds(bytes: &[u8], records: &[Record]) -> Result<(), TestCaseError> {
        let mut end = VnetHdr::LEN;
        for record in records {
            let own = if record.has_vnet { VnetHdr::LEN } else { 0 };
            prop_assert!(usize::from(record.at) >= end + RECORD_LEN + own);
            end = usize::from(record.at) + usize::from(record.len);
        }
        prop_assert!(end <= bytes.len());
        Ok(())
    }

    proptest! {
        #[test]
        fn what_was_packed_comes_out_in_order(
            frames in prop::collection::vec(sent(), 1..80),
            buffer_len in 12 + 4 + 3000..20_000usize,
        ) {
            let (bytes, count) = pack(&frames, buffer_len);
            prop_assert!(count > 0 && bytes.len() <= buffer_len);
            prop_assert_eq!(unpack(&bytes), Ok(frames[..count].to_vec()));
        }

        #[test]
        fn any_bytes_give_places_inside_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            if let Ok(records) = parse_bytes(&bytes) {
                check_bounds(&bytes, &records)?;
            }
        }

        #[test]
        fn any_records_give_places_inside_or_an_error(
            count in 0..8u16,
            body in prop::collection::vec(prop_oneof![Just(0u8), Just(1), 0..40u8], 0..300),
        ) {
            let bytes = forged(count, &body);
            if let Ok(records) = parse_bytes(&bytes) {
                check_bounds(&bytes, &records)?;
                prop_assert_eq!(records.len(), usize::from(count));
            }
        }

        #[test]
        fn a_flipped_bit_is_refused_or_harmless(
            frames in prop::collection::vec(sent(), 1..20),
            bit in any::<prop::sample::Index>(),
        ) {
            let (mut bytes, _) = pack(&frames, 20_000);
            let bit = bit.index(bytes.len() * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
            if let Ok(records) = parse_bytes(&bytes) {
                check_bounds(&bytes, &records)?;
            }
        }

        #[test]
        fn memory_that_changes_while_it_is_read_gives_no_place_outside(
            count in 1..50u16,
            gso_size in 0..4000u16,
            reads in prop::collection::vec(prop_oneof![Just([60, 0, 0, 0]), any::<[u8; 4]>()], 50),
        ) {
            let vnet = VnetHdr { hdr_len: count, gso_size, ..Builder::new(0).vnet() };
            let written = VnetHdr::LEN + usize::from(gso_size);
            let (mut reads, mut records) = (reads.into_iter(), Vec::new());
            if parse(&vnet, written, |_| reads.next(), &mut records).is_ok() {
                check_bounds(&vec![0; written], &records)?;
            }
        }
    }
}
