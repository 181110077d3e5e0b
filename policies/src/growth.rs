//! How large a new segment is. Knows the request and three parameters, nothing of free blocks.
use crate::{GRAIN, Request};

const MIB: u64 = 1 << 20;

/// The rule for the size of a new segment: a share of what the allocator has reserved, within limits.
///
/// A stream that has twice the request free, but in pieces, gets twice the request: its free memory is
/// broken up, and one more exact fit would break it further. The defaults come from replaying 15 recorded
/// training, inference and serving traces on plain segments: geometric mean of peak reserved over peak
/// live 1.365.
///
/// A frugal allocator grows in smaller steps, a sixteenth of what is reserved and at least 2 MiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Growth {
    /// The share of the reserved bytes that a new segment adds, in thousandths.
    pub per_mille: u32,
    /// The least bytes of a segment for requests of the small band.
    pub floor_small: u64,
    /// The least bytes of a segment for all other requests.
    pub floor: u64,
}

impl Growth {
    /// An eighth of what is reserved, at least 2 MiB for small requests and 32 MiB for others.
    pub const DEFAULT: Growth = Growth { per_mille: 125, floor_small: 2 * MIB, floor: 32 * MIB };
    /// What a frugal allocator's new segment adds: the reserved bytes divided by this.
    const FRUGAL_DIVISOR: u64 = 16;
    /// The least bytes of a frugal allocator's new segment.
    const FRUGAL_FLOOR: u64 = 2 * MIB;

    /// The bytes of a new segment for `request`, a multiple of 512 if the request's size is one.
    ///
    /// At most `request.room`, but never under `request.size`.
    #[cold]
    pub fn bytes(&self, request: &Request, small: bool) -> u64 {
        let wanted = if request.frugal {
            Self::FRUGAL_FLOOR.max(request.reserved / Self::FRUGAL_DIVISOR)
        } else {
            self.generous(request, small)
        };
        round_up(wanted).min(round_down(request.room)).max(request.size)
    }

    fn generous(&self, request: &Request, small: bool) -> u64 {
        let floor = if small { self.floor_small } else { self.floor };
        let share = u128::from(request.reserved) * u128::from(self.per_mille) / 1000;
        let share = u64::try_from(share).unwrap_or(u64::MAX);
        let twice = request.size.saturating_mul(2);
        let for_broken_up = if request.free >= twice { twice } else { 0 };
        share.max(floor).max(for_broken_up)
    }
}

impl Default for Growth {
    fn default() -> Self {
        Growth::DEFAULT
    }
}

fn round_down(bytes: u64) -> u64 {
    bytes - bytes % GRAIN
}

fn round_up(bytes: u64) -> u64 {
    round_down(bytes.saturating_add(GRAIN - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(size: u64, reserved: u64, room: u64) -> Request {
        Request { reserved, room, ..Request::new(size, GRAIN) }
    }

    #[test]
    fn an_eighth_of_the_reserved_bytes_above_the_floor() {
        let growth = Growth::DEFAULT;
        assert_eq!(growth.bytes(&request(512, 0, u64::MAX), true), 2 * MIB);
        assert_eq!(growth.bytes(&request(4 * MIB, 0, u64::MAX), false), 32 * MIB);
        assert_eq!(growth.bytes(&request(512, 1000 * MIB, u64::MAX), false), 125 * MIB);
        assert_eq!(growth.bytes(&request(512, 1001 * MIB + 77, u64::MAX), false) % GRAIN, 0);
    }

    #[test]
    fn broken_up_memory_gets_twice_the_request() {
        let growth = Growth::DEFAULT;
        let broken = |free| Request { free, ..request(100 * MIB, 0, u64::MAX) };
        assert_eq!(growth.bytes(&broken(200 * MIB - 1), false), 100 * MIB);
        assert_eq!(growth.bytes(&broken(200 * MIB), false), 200 * MIB);
    }

    #[test]
    fn a_frugal_allocator_grows_in_small_steps() {
        let frugal = |reserved| Request { frugal: true, ..request(512, reserved, u64::MAX) };
        assert_eq!(Growth::DEFAULT.bytes(&frugal(0), false), 2 * MIB);
        assert_eq!(Growth::DEFAULT.bytes(&frugal(1600 * MIB), false), 100 * MIB);
    }

    #[test]
    fn room_limits_but_never_under_the_size() {
        let growth = Growth::DEFAULT;
        assert_eq!(growth.bytes(&request(4 * MIB, 0, 5 * MIB + 1), false), 5 * MIB);
        assert_eq!(growth.bytes(&request(4 * MIB, 0, 0), false), 4 * MIB);
        assert_eq!(growth.bytes(&request(1 << 62, u64::MAX, u64::MAX), false), 1 << 62);
    }
}
