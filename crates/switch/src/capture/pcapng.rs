//! The blocks of a pcapng file (draft-ietf-opsawg-pcapng).

use std::borrow::Cow;
use std::io::{self, BufWriter, Write};

use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::pcapng::blocks::interface_statistics::{
    InterfaceStatisticsBlock, InterfaceStatisticsOption,
};
use pcap_file::pcapng::blocks::section_header::{SectionHeaderBlock, SectionHeaderOption};
use pcap_file::pcapng::{Block, PcapNgReader, PcapNgWriter};
use pcap_file::{DataLink, Endianness, PcapError};
use weir_engine::capture::{Counted, Direction, Header};

use super::{CaptureRequest, Seen};

/// The size of a write.
const BUFFER_LEN: usize = 256 << 10;
/// The exponent of the unit of times: a unit is 10 to the minus this many seconds.
const RESOLUTION: u8 = 9;
/// Bits of `epb_flags` (section 4.3.1): the direction as seen by the port's guest, and pending offloads.
const INBOUND: u32 = 1;
const OUTBOUND: u32 = 2;
const CSUM_NOT_READY: u32 = 1 << 9;
const TO_BE_SEGMENTED: u32 = 1 << 11;

/// A file that is being written.
pub(super) struct Writer<W: Write> {
    blocks: PcapNgWriter<BufWriter<W>>,
    written: u64,
}

impl<W: Write> Writer<W> {
    /// Writes the section's header and an interface for each port.
    pub(super) fn begin(out: W, request: &CaptureRequest) -> io::Result<Self> {
        let application = concat!("weir ", env!("CARGO_PKG_VERSION"));
        let section = SectionHeaderBlock {
            endianness: Endianness::native(),
            options: vec![SectionHeaderOption::UserApplication(application.into())],
            ..SectionHeaderBlock::default()
        };
        let out = BufWriter::with_capacity(BUFFER_LEN, out);
        let mut blocks = PcapNgWriter::with_section_header(out, section).map_err(io_error)?;
        for name in &request.ports {
            let mut options = vec![
                InterfaceDescriptionOption::IfName(name.to_string().into()),
                InterfaceDescriptionOption::IfTsResol(RESOLUTION),
            ];
            if !request.filter.is_empty() {
                // Kind 0: an expression of libpcap.
                let filter = [&[0], request.filter.to_string().as_bytes()].concat();
                options.push(InterfaceDescriptionOption::IfFilter(filter.into()));
            }
            let block = InterfaceDescriptionBlock {
                linktype: DataLink::ETHERNET,
                snaplen: request.snap_len.unwrap_or(0),
                options,
            };
            blocks.write_pcapng_block(block).map_err(io_error)?;
        }
        Ok(Self { blocks, written: 0 })
    }

    /// Writes one frame.
    pub(super) fn frame(&mut self, header: &Header, epoch_ns: u64, bytes: &[u8]) -> io::Result<()> {
        let mut flags = match header.direction {
            Direction::Tx => OUTBOUND,
            Direction::Rx => INBOUND,
        };
        if header.csum_pending {
            flags |= CSUM_NOT_READY;
        }
        if header.gso {
            flags |= TO_BE_SEGMENTED;
        }
        let mut options = vec![EnhancedPacketOption::Flags(flags)];
        if let Some(reason) = header.dropped {
            options.push(EnhancedPacketOption::Comment(
                format!("dropped: {}", reason.as_str()).into(),
            ));
        }
        let block = EnhancedPacketBlock {
            interface_id: header.port.into(),
            timestamp: std::time::Duration::from_nanos(epoch_ns + header.at_ns),
            original_len: header.len,
            data: Cow::Borrowed(bytes),
            options,
        };
        self.blocks.write_pcapng_block(block).map_err(io_error)?;
        self.written += 1;
        Ok(())
    }

    /// Writes the present counters of each port.
    pub(super) fn statistics(&mut self, now_ns: u64, ports: &[Counted]) -> io::Result<()> {
        for (number, counted) in (0..).zip(ports) {
            let mut options = vec![
                InterfaceStatisticsOption::IsbIfRecv(counted.seen),
                InterfaceStatisticsOption::IsbIfDrop(counted.lost),
                InterfaceStatisticsOption::IsbFilterAccept(counted.matched),
            ];
            if !counted.unseen_drops.is_empty() {
                let unseen = counted.unseen_drops.iter();
                let unseen = unseen.map(|(reason, n)| format!("{} {n}", reason.as_str()));
                let unseen = unseen.collect::<Vec<_>>().join(", ");
                let comment = format!("dropped, with no copy of the frame: {unseen}");
                options.push(InterfaceStatisticsOption::Comment(comment.into()));
            }
            // The high word comes first (section 4.6). The crate leaves this to its caller.
            let timestamp = match Endianness::native() {
                Endianness::Little => now_ns.rotate_left(u32::BITS),
                Endianness::Big => now_ns,
            };
            let block = InterfaceStatisticsBlock { interface_id: number, timestamp, options };
            self.blocks.write_pcapng_block(block).map_err(io_error)?;
        }
        Ok(())
    }

    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.blocks.get_mut().flush()
    }

    /// The number of frames written.
    pub(super) fn written(&self) -> u64 {
        self.written
    }
}

/// The whole frames in the beginning of a capture.
pub fn seen_in(stream: &[u8]) -> Vec<Seen> {
    let mut seen = Vec::new();
    let Ok(mut blocks) = PcapNgReader::new(stream) else { return seen };
    while let Some(Ok(block)) = blocks.next_block() {
        let Block::EnhancedPacket(packet) = block else { continue };
        let (port, frame) = (packet.interface_id as usize, packet.data.into_owned());
        let options = blocks.interfaces().get(port).map_or(&[][..], |it| &it.options);
        let name = options.iter().find_map(|option| match option {
            InterfaceDescriptionOption::IfName(name) => name.parse().ok(),
            _ => None,
        });
        seen.extend(name.map(|port| Seen { port, frame }));
    }
    seen
}

fn io_error(error: PcapError) -> io::Error {
    match error {
        PcapError::IoError(error) => error,
        other => io::Error::other(other),
    }
}
