//! Compressed traces, whole, damaged and cut short.
#![cfg(feature = "compress")]

use std::io::Write;

use aquifer::trace::{Fault, Packing, Trace};
use flate2::{Compression, write::GzEncoder};
use ruzstd::encoding::{CompressionLevel, compress_to_vec};

fn text() -> String {
    let mut text = String::from("s start\n");
    for id in 0..1500u64 {
        text += &format!("a {id} {} {}\n", id * 7919 % 100_003, id % 3);
        if id >= 8 {
            text += &format!("f {}\n", id - 8);
        }
    }
    text
}

fn gzip(text: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(text).unwrap();
    encoder.finish().unwrap()
}

fn zstd(text: &[u8]) -> Vec<u8> {
    compress_to_vec(text, CompressionLevel::Fastest)
}

fn fault(bytes: &[u8]) -> Fault {
    Trace::parse(bytes).expect_err("a damaged file").fault
}

/// A frame that decoders skip, as `pzstd` writes.
const SKIPPED: [u8; 12] = [0x50, 0x2a, 0x4d, 0x18, 4, 0, 0, 0, 1, 2, 3, 4];

#[test]
fn packed_text_reads_as_plain_text_does() {
    let text = text();
    let plain = Trace::parse(text.as_bytes()).unwrap();
    assert_eq!(Trace::parse(&gzip(text.as_bytes())[..]).unwrap(), plain);
    assert_eq!(Trace::parse(&zstd(text.as_bytes())[..]).unwrap(), plain);
}

#[test]
fn members_and_frames_are_joined_wherever_they_part_a_line() {
    let text = text();
    let plain = Trace::parse(text.as_bytes()).unwrap();
    for at in [1, 9, 10_001] {
        let (head, tail) = text.as_bytes().split_at(at);
        assert_eq!(Trace::parse(&[gzip(head), gzip(tail)].concat()[..]).unwrap(), plain);
        let frames = [&SKIPPED[..], &zstd(head), &zstd(b""), &SKIPPED, &zstd(tail)].concat();
        assert_eq!(Trace::parse(&frames[..]).unwrap(), plain);
    }
}

#[test]
fn a_file_cut_anywhere_is_truncated() {
    let text = text();
    for (packing, bytes) in
        [(Packing::Gzip, gzip(text.as_bytes())), (Packing::Zstd, zstd(text.as_bytes()))]
    {
        for end in (4..bytes.len()).step_by(211).chain([bytes.len() - 1]) {
            let fault = fault(&bytes[..end]);
            let right = matches!(fault, Fault::Truncated(found) if found == packing);
            assert!(right, "{packing} cut at {end} of {}: {fault:?}", bytes.len());
        }
    }
    assert!(matches!(fault(&SKIPPED[..10]), Fault::Truncated(Packing::Zstd)));
}

#[test]
fn a_truncated_file_tells_the_line_reached() {
    let bytes = gzip(text().as_bytes());
    let error = Trace::parse(&bytes[..bytes.len() / 2]).unwrap_err();
    assert!((1000..2500).contains(&error.line), "{error}");
    let text = error.to_string();
    assert!(text.ends_with(": the gzip data ends too early: the file is cut short"), "{text}");
}

#[test]
fn a_flipped_bit_never_passes_unseen() {
    let text = text();
    let plain = Trace::parse(text.as_bytes()).unwrap();
    for bytes in [gzip(text.as_bytes()), zstd(text.as_bytes())] {
        for at in (4..bytes.len()).step_by(101) {
            let mut bytes = bytes.clone();
            bytes[at] ^= 1 << (at % 8);
            // A bit of the header's name, time or system may change nothing.
            if let Ok(trace) = Trace::parse(&bytes[..]) {
                assert_eq!(trace, plain, "byte {at}");
            }
        }
    }
}

#[test]
fn damage_is_told_from_truncation() {
    let mut bytes = gzip(text().as_bytes());
    let end = bytes.len();
    bytes[end - 6] ^= 1;
    assert!(matches!(fault(&bytes), Fault::Corrupt(Packing::Gzip, _)));
    let mut bytes = zstd(text().as_bytes());
    let end = bytes.len();
    bytes[end - 2] ^= 1;
    let error = Trace::parse(&bytes[..]).unwrap_err();
    assert!(error.to_string().contains("damaged zstd data: wrong checksum"), "{error}");
    let garbage = [&gzip(b"e\n")[..], b"no gzip header"].concat();
    assert!(matches!(fault(&garbage), Fault::Corrupt(Packing::Gzip, _)));
}

#[test]
fn packed_nothing_is_empty() {
    assert!(matches!(fault(&gzip(b"")), Fault::Empty));
    assert!(matches!(fault(&zstd(b"")), Fault::Empty));
    assert!(matches!(fault(&SKIPPED), Fault::Empty));
}

#[test]
fn a_window_beyond_the_limit_is_refused() {
    // Descriptor 0: no single segment; window byte 0xb8: exponent 23, which is 8 GiB.
    let fault = fault(&[0x28, 0xb5, 0x2f, 0xfd, 0, 0xb8, 1, 0, 0]);
    let expected = "damaged zstd data: a window of 8589934592 bytes, at most 8388608 are decoded: \
                    compress without --ultra and --long";
    assert_eq!(fault.to_string(), expected);
}

#[test]
fn a_bomb_is_refused() {
    // One frame of blocks, each of a 3-byte header (size, kind, last) and one byte: a run of 60,000
    // times `#`, then a line feed, and so on.
    let mut bomb = vec![0x28, 0xb5, 0x2f, 0xfd, 0, 0x58];
    let (raw, run) = (1u32 << 3, 60_000u32 << 3 | 1 << 1);
    for (header, byte) in [(run, b'#'), (raw, b'\n')].into_iter().cycle().take(3000) {
        bomb.extend_from_slice(&header.to_le_bytes()[..3]);
        bomb.push(byte);
    }
    assert!(matches!(fault(&bomb), Fault::Inflated { .. }));
}

#[test]
fn files_of_the_usual_tools_are_read() {
    let read = |name: &str| Trace::read(format!("fuzz/seeds/trace_reader/{name}")).unwrap();
    let plain = read("verbs.trace");
    for name in ["verbs.trace.gz", "verbs.trace.zst", "frames.trace.zst"] {
        assert_eq!(read(name), plain, "{name}");
    }
    let joined = read("members.trace.gz");
    assert_eq!(joined.len(), plain.len() + read("edges.trace").len());
    assert_eq!(read("many.trace.zst").slots(), 6);
}
