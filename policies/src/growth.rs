//! How large a new segment is. Knows the request and three parameters, nothing of free blocks.
use crate::{GRAIN, Request};

const MIB: u64 = 1 << 20;

/// The rule for the size of a new segment: a share of what is reserved, within limits.
///
/// With a tenth, first fit on plain segments reserved 1.49 times the peak in use (geometric mean of 15
/// recorded traces of training and inference).
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
    /// A tenth of what is reserved, at least 2 MiB for small requests and 20 MiB for others.
    pub const DEFAULT: Growth = Growth { per_mille: 100, floor_small: 2 * MIB, floor: 20 * MIB };

    /// The bytes of a new segment for `request`, a multiple of 512 if the request's size is one.
    ///
    /// At most `request.room`, but never under `request.size`.
    #[cold]
    pub fn bytes(&self, request: &Request, small: bool) -> u64 {
        let floor = if small { self.floor_small } else { self.floor };
        let share = u128::from(request.reserved) * u128::from(self.per_mille) / 1000;
        let share = u64::try_from(share).unwrap_or(u64::MAX);
        let wanted = round_up(share.max(floor));
        wanted.min(round_down(request.room)).max(request.size)
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
        Request { size, align: GRAIN, reserved, room }
    }

    #[test]
    fn a_tenth_of_the_reserved_bytes_above_the_floor() {
        let growth = Growth::DEFAULT;
        assert_eq!(growth.bytes(&request(512, 0, u64::MAX), true), 2 * MIB);
        assert_eq!(growth.bytes(&request(4 * MIB, 0, u64::MAX), false), 20 * MIB);
        assert_eq!(growth.bytes(&request(512, 1000 * MIB, u64::MAX), false), 100 * MIB);
        assert_eq!(growth.bytes(&request(512, 1001 * MIB, u64::MAX), false) % GRAIN, 0);
    }

    #[test]
    fn room_limits_but_never_under_the_size() {
        let growth = Growth::DEFAULT;
        assert_eq!(growth.bytes(&request(4 * MIB, 0, 5 * MIB + 1), false), 5 * MIB);
        assert_eq!(growth.bytes(&request(4 * MIB, 0, 0), false), 4 * MIB);
        assert_eq!(growth.bytes(&request(1 << 62, u64::MAX, u64::MAX), false), 1 << 62);
    }
}
