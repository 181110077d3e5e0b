//! The search for the smallest device that is enough. Does not know what is run on it.

/// Capacities that are tried are multiples of this: the device's unit, in bytes.
pub(crate) const GRANULARITY: u64 = 2 << 20;

/// The search ends when it knows the capacity to one part in this many of the peak live bytes.
const PRECISION: u64 = 1000;

/// Bisects between the peak live bytes, less than which cannot be enough, and twice the bytes
/// reserved on a large device. The smallest capacity found with what `try_at` answered for it; none
/// if twice is not enough.
///
/// Where more memory can be worse, which growing and giving back may lead to, a smaller one that is
/// enough may be missed.
///
/// # Errors
/// The first of `try_at`, which answers none where the capacity is not enough.
pub(crate) fn search<T, E>(
    peak_live_bytes: u64,
    peak_reserved_bytes: u64,
    mut try_at: impl FnMut(u64) -> Result<Option<T>, E>,
) -> Result<Option<(u64, T)>, E> {
    let live = peak_live_bytes.div_ceil(GRANULARITY).max(1);
    let reserved = peak_reserved_bytes.div_ceil(GRANULARITY).max(live);
    let precision = (peak_live_bytes / PRECISION / GRANULARITY).max(1);
    let mut found = None;
    for units in [reserved, 2 * reserved] {
        if let Some(answer) = try_at(units * GRANULARITY)? {
            found = Some((units, answer));
            break;
        }
    }
    let Some((mut enough, mut answer)) = found else { return Ok(None) };
    let mut short = live - 1;
    while enough - short > precision {
        let middle = short + (enough - short) / 2;
        match try_at(middle * GRANULARITY)? {
            Some(better) => (enough, answer) = (middle, better),
            None => short = middle,
        }
    }
    Ok(Some((enough * GRANULARITY, answer)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// The search on a device that needs `need` bytes, and how many capacities it tried.
    fn found(live: u64, reserved: u64, need: u64) -> (Option<u64>, u32) {
        let mut tries = 0;
        let found = search(live, reserved, |capacity| {
            tries += 1;
            assert_eq!(capacity % GRANULARITY, 0);
            Ok::<_, ()>((capacity >= need).then_some(capacity))
        });
        let found = found.unwrap();
        assert!(found.is_none_or(|(capacity, answer)| capacity == answer));
        (found.map(|(capacity, _)| capacity), tries)
    }

    #[test]
    fn the_least_capacity_is_found_to_half_a_percent_of_live() {
        let (live, reserved) = (1000 * MIB, 1400 * MIB);
        for need in [1000, 1001, 1100, 1399, 1400, 1401, 2000, 2800].map(|mib| mib * MIB) {
            let (capacity, tries) = found(live, reserved, need);
            let over = capacity.unwrap() - need;
            assert!(over < live / 200 + GRANULARITY, "{need}: {over}");
            assert!(tries <= 12, "{tries}");
        }
    }

    #[test]
    fn small_traces_are_found_to_the_unit() {
        assert_eq!(found(1, 2 * MIB, 1).0, Some(2 * MIB));
        assert_eq!(found(3 * MIB, 32 * MIB, 7 * MIB).0, Some(8 * MIB));
        assert_eq!(found(0, 0, 0).0, Some(2 * MIB));
    }

    #[test]
    fn there_is_none_where_twice_is_not_enough() {
        assert_eq!(found(100 * MIB, 120 * MIB, 241 * MIB), (None, 2));
    }

    #[test]
    fn an_error_ends_the_search() {
        assert_eq!(search(1, 1, |_| Err::<Option<()>, _>("broken")), Err("broken"));
    }
}
