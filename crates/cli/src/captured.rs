//! The output of a capture: pcapng, piece by piece, to a file or as lines for people.

use std::fmt::Write as _;
use std::io::{self, Write};
use std::time::Duration;

use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::InterfaceDescriptionOption;
use pcap_file::pcapng::blocks::interface_statistics::{
    InterfaceStatisticsBlock, InterfaceStatisticsOption,
};
use pcap_file::pcapng::{Block, PcapNgParser};
use weir_limits::FRAME_LEN_MAX;
use weir_wire::{Ethernet, Layers, Network, Transport};

/// Kinds of blocks (draft-ietf-opsawg-pcapng).
const SECTION: u32 = 0x0a0d_0d0a;
const PACKET: u32 = 6;
/// A block consists of at least its kind, its length and its length again.
const BLOCK_LEN_MIN: usize = 12;
/// The length of weir's longest block: a frame, and some options.
const BLOCK_LEN_MAX: usize = FRAME_LEN_MAX as usize + 4096;
/// Bits of `epb_flags` for the direction.
const DIRECTION: u32 = 3;
const INBOUND: u32 = 1;

/// The form of the output.
pub enum Form<W> {
    /// pcapng as it arrives. However the capture ends, the file ends with a whole block.
    Pcapng(W),
    /// A line for each frame.
    Lines(W),
}

/// A capture that is being received.
pub struct Captured<W> {
    form: Form<W>,
    /// The received part of the next block.
    rest: Vec<u8>,
    parser: Option<PcapNgParser>,
    frames: u64,
    /// Lost frames, by interface.
    lost: Vec<u64>,
    unseen: Vec<Option<String>>,
}

impl<W: Write> Captured<W> {
    /// A capture without any frames.
    pub fn new(form: Form<W>) -> Self {
        let (rest, lost, unseen) = Default::default();
        Self { form, rest, parser: None, frames: 0, lost, unseen }
    }

    /// Takes the next bytes of the stream, and writes the blocks that are complete.
    ///
    /// # Errors
    /// The error of the output, or [`io::ErrorKind::InvalidData`] if the stream is not weir's pcapng.
    pub fn take(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut stream = std::mem::take(&mut self.rest);
        stream.extend_from_slice(bytes);
        let mut at = 0;
        while let Some(len) = block_len(&stream[at..])? {
            let block = &stream[at..at + len];
            self.block(block)?;
            if let Form::Pcapng(out) = &mut self.form {
                out.write_all(block)?;
            }
            at += len;
        }
        stream.drain(..at);
        self.rest = stream;
        match &mut self.form {
            Form::Pcapng(out) | Form::Lines(out) => out.flush(),
        }
    }

    fn block(&mut self, block: &[u8]) -> io::Result<()> {
        let kind = u32::from_ne_bytes(word(block, 0)?);
        if kind == SECTION {
            let (_, parser) = PcapNgParser::new(block).map_err(io::Error::other)?;
            self.parser = Some(parser);
            return Ok(());
        }
        self.frames += u64::from(kind == PACKET);
        if kind == PACKET && matches!(self.form, Form::Pcapng(_)) {
            return Ok(());
        }
        let parser = self.parser.as_mut().ok_or(io::ErrorKind::InvalidData)?;
        let (_, block) = parser.next_block(block).map_err(io::Error::other)?;
        match (block, &mut self.form) {
            (Block::InterfaceStatistics(statistics), _) => self.note(&statistics),
            (Block::EnhancedPacket(packet), Form::Lines(out)) => {
                let interface = parser.packet_interface(&packet);
                let options = interface.map_or(&[][..], |interface| &interface.options);
                let name = options.iter().find_map(|option| match option {
                    InterfaceDescriptionOption::IfName(name) => Some(&**name),
                    _ => None,
                });
                writeln!(out, "{}", line(&packet, name.unwrap_or("?")))?;
            }
            _ => {}
        }
        Ok(())
    }

    fn note(&mut self, statistics: &InterfaceStatisticsBlock<'_>) {
        let interface = statistics.interface_id as usize;
        if self.lost.len() <= interface {
            self.lost.resize(interface + 1, 0);
            self.unseen.resize(interface + 1, None);
        }
        for option in &statistics.options {
            match option {
                InterfaceStatisticsOption::IsbIfDrop(lost) => self.lost[interface] = *lost,
                InterfaceStatisticsOption::Comment(comment) => {
                    self.unseen[interface] = Some(comment.to_string());
                }
                _ => {}
            }
        }
    }

    /// The counts of the capture, in a few words.
    pub fn summary(&self) -> String {
        let frames = usize::try_from(self.frames).unwrap_or(usize::MAX);
        let mut text = weir_text::count(frames, "frame");
        match self.lost.iter().sum::<u64>() {
            0 => text += ", none lost",
            lost => text += &format!(", and {lost} lost: the reader was too slow"),
        }
        for unseen in self.unseen.iter().flatten() {
            text += &format!("; {unseen}");
        }
        text
    }
}

fn word(bytes: &[u8], at: usize) -> io::Result<[u8; 4]> {
    let word = bytes.get(at..).and_then(|rest| rest.first_chunk().copied());
    word.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// The length of the block at the start of `stream`; `None` until enough bytes have arrived.
fn block_len(stream: &[u8]) -> io::Result<Option<usize>> {
    if stream.len() < BLOCK_LEN_MIN {
        return Ok(None);
    }
    // weir writes in this machine's byte order.
    let len = u32::from_ne_bytes(word(stream, 4)?) as usize;
    if !(BLOCK_LEN_MIN..=BLOCK_LEN_MAX).contains(&len) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "this is no pcapng of weir's"));
    }
    Ok((stream.len() >= len).then_some(len))
}

/// A line for a frame: only numbers, so that no text of a guest reaches the terminal.
fn line(packet: &EnhancedPacketBlock<'_>, name: &str) -> String {
    let mut text = time_of_day(packet.timestamp);
    let (mut direction, mut comment) = ("tx", None);
    for option in &packet.options {
        match option {
            EnhancedPacketOption::Flags(flags) if flags & DIRECTION == INBOUND => direction = "rx",
            EnhancedPacketOption::Comment(said) => comment = Some(said),
            _ => {}
        }
    }
    let _ = write!(text, " {name} {direction} {}", headers(&packet.data));
    let _ = write!(text, ", {} bytes", packet.original_len);
    if let Some(comment) = comment {
        let _ = write!(text, ", {comment}");
    }
    text
}

/// The time of day in UTC.
pub(crate) fn time_of_day(since_epoch: Duration) -> String {
    let (secs, us) = (since_epoch.as_secs(), since_epoch.subsec_micros());
    let (hours, minutes) = (secs / 3600 % 24, secs / 60 % 60);
    format!("{hours:02}:{minutes:02}:{:02}.{us:06}", secs % 60)
}

pub(crate) fn headers(frame: &[u8]) -> String {
    let Ok(Ethernet { src, dst, tag, ethertype, .. }) = Ethernet::parse(frame) else {
        return "no whole Ethernet header".into();
    };
    let mut text = format!("{src} > {dst}");
    if let Some(tag) = tag {
        let _ = write!(text, ", VLAN {}", tag.vid());
    }
    let Ok(layers) = Layers::parse(frame) else {
        let _ = write!(text, ", type {ethertype:#06x}");
        return text;
    };
    let (src, dst, protocol) = match layers.network {
        Network::Ipv4(ip) => (ip.src.to_string(), ip.dst.to_string(), ip.protocol),
        Network::Ipv6(ip) => (format!("[{}]", ip.src), format!("[{}]", ip.dst), ip.protocol),
        _ => {
            let _ = write!(text, ", type {ethertype:#06x}");
            return text;
        }
    };
    let _ = match layers.transport {
        Transport::Tcp { ports, .. } => {
            write!(text, ", TCP {src}:{} > {dst}:{}", ports.src, ports.dst)
        }
        Transport::Udp { ports, .. } => {
            write!(text, ", UDP {src}:{} > {dst}:{}", ports.src, ports.dst)
        }
        _ => write!(text, ", IP protocol {protocol} {src} > {dst}"),
    };
    text
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use pcap_file::pcapng::PcapNgWriter;
    use pcap_file::pcapng::blocks::interface_description::InterfaceDescriptionBlock;
    use pcap_file::{DataLink, Endianness};

    use super::*;

    /// A stream in weir's format: an interface, two frames, one of them dropped, and counters.
    fn stream() -> Vec<u8> {
        let mut writer = PcapNgWriter::with_endianness(Vec::new(), Endianness::native()).unwrap();
        let mut interface = InterfaceDescriptionBlock::new(DataLink::ETHERNET, 0);
        interface.options.push(InterfaceDescriptionOption::IfName("web0".into()));
        writer.write_pcapng_block(interface).unwrap();
        let described = "eth.dst=02:00:00:00:00:09, vlan.id=7, ip.src=10.0.0.1, ip.dst=10.0.0.2, udp.srcport=1, udp.dstport=53";
        let udp = crate::frame::described(
            described,
            weir_wire::Mac([2, 0, 0, 0, 0, 1]),
            weir_wire::Mac::BROADCAST,
        )
        .unwrap();
        // A guest can put any bytes into its frames.
        let odd =
            [&[2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 1, 0x88, 0xb5][..], b"\x1b]0;owned\x07"].concat();
        let options = [
            vec![EnhancedPacketOption::Flags(INBOUND)],
            vec![
                EnhancedPacketOption::Flags(2),
                EnhancedPacketOption::Comment("dropped: filtered_tx".into()),
            ],
        ];
        for (data, options) in [udp, odd].iter().zip(options) {
            let timestamp = Duration::new(3661, 5_000);
            let (interface_id, original_len) = (0, data.len() as u32);
            let data = Cow::Borrowed(&data[..]);
            writer
                .write_pcapng_block(EnhancedPacketBlock {
                    interface_id,
                    timestamp,
                    original_len,
                    data,
                    options,
                })
                .unwrap();
        }
        let options = vec![
            InterfaceStatisticsOption::IsbIfDrop(7),
            InterfaceStatisticsOption::Comment(
                "dropped, with no copy of the frame: tx_stopped 2".into(),
            ),
        ];
        let counted = InterfaceStatisticsBlock { interface_id: 0, timestamp: 0, options };
        writer.write_pcapng_block(counted).unwrap();
        writer.into_inner()
    }

    #[test]
    fn a_file_gets_whole_blocks_however_the_stream_is_cut() {
        let stream = stream();
        for cut in 0..stream.len() {
            let mut file = Vec::new();
            let mut captured = Captured::new(Form::Pcapng(&mut file));
            captured.take(&stream[..cut]).unwrap();
            drop(captured);
            assert!(stream.starts_with(&file));
            let mut at = 0;
            while let Some(len) = block_len(&file[at..]).unwrap() {
                at += len;
            }
            assert_eq!(at, file.len(), "half a block");

            let mut file = Vec::new();
            let mut captured = Captured::new(Form::Pcapng(&mut file));
            captured.take(&stream[..cut]).unwrap();
            captured.take(&stream[cut..]).unwrap();
            let said = captured.summary();
            assert_eq!(
                said,
                "2 frames, and 7 lost: the reader was too slow; dropped, with no copy of the frame: tx_stopped 2"
            );
            drop(captured);
            assert_eq!(file, stream);
        }
    }

    #[test]
    fn a_line_has_the_headers_and_nothing_that_a_guest_has_written() {
        let mut out = Vec::new();
        Captured::new(Form::Lines(&mut out)).take(&stream()).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert_eq!(
            text,
            "01:01:01.000005 web0 rx 02:00:00:00:00:01 > 02:00:00:00:00:09, VLAN 7, UDP 10.0.0.1:1 > 10.0.0.2:53, 60 bytes\n\
         01:01:01.000005 web0 tx 02:00:00:00:00:01 > 02:00:00:00:00:09, type 0x88b5, 24 bytes, dropped: filtered_tx\n"
        );
    }

    #[test]
    fn what_is_no_stream_of_weirs_is_an_error() {
        for bytes in [&[0xff; 64][..], &[0; 64]] {
            let error = Captured::new(Form::Pcapng(Vec::new())).take(bytes).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        }
    }
}
