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
    let odd = [&[2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 1, 0x88, 0xb5][..], b"\x1b]0;owned\x07"].concat();
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
