//! Golden values, computed with the reference XXH3 through Python's `xxhash` and `struct`, not with this code:
//! `h = xxhash.xxh3_64_intdigest(encoded); group = ((h >> 32) * max_parallelism) >> 32`.
use super::*;
use crate::ids::KeyGroupRange;
use proptest::prelude::*;

fn encoded(write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = Vec::new();
    write(&mut out);
    out
}

#[test]
fn golden_hashes_and_key_groups() {
    let text = |text: &str| encoded(|out| encode::bytes(out, text.as_bytes()));
    let two_columns = encoded(|out| {
        encode::bytes(out, b"app1");
        encode::fixed(out, 7_i64.to_le_bytes());
    });
    let golden: [(&str, Vec<u8>, u64, u16, u16); 13] = [
        ("nothing", vec![], 0x2d06_8005_38d3_94c2, 22, 5763),
        ("null", encoded(encode::null), 0xc44b_dff4_074e_ecdb, 98, 25125),
        ("0", encode::bigint(0).to_vec(), 0x313c_2dd2_ec99_6e80, 24, 6302),
        ("1", encode::bigint(1).to_vec(), 0xa048_b5cb_8216_2577, 80, 20516),
        ("-1", encode::bigint(-1).to_vec(), 0x53a5_f4bc_2fc0_168c, 41, 10706),
        ("app1", text("app1"), 0xc0e7_6ab0_5616_daa6, 96, 24691),
        ("app2", text("app2"), 0xcbea_cc1c_b4a2_e0a4, 101, 26101),
        ("empty string", text(""), 0xd1dd_927e_d529_f768, 104, 26862),
        ("-0.0", encoded(|out| encode::double(out, -0.0)), 0x313c_2dd2_ec99_6e80, 24, 6302),
        ("a NaN", encoded(|out| encode::double(out, -f64::NAN)), 0x6a33_929c_e40a_04d7, 53, 13593),
        ("two columns", two_columns, 0xf695_cea4_9ee5_4a87, 123, 31562),
        ("300 x", text(&"x".repeat(300)), 0x0256_559a_05c2_bac5, 1, 299),
        ("not ASCII", text("Zürich"), 0x1d76_c80f_ff41_2a18, 14, 3771),
    ];
    for (name, bytes, expected, group, fine_group) in golden {
        assert_eq!(hash(&bytes), expected, "hash of {name}");
        assert_eq!(of_hash(expected, 128), KeyGroup(group), "key group of {name}");
        assert_eq!(of_hash(expected, MAX_PARALLELISM_LIMIT), KeyGroup(fine_group), "fine key group of {name}");
    }
}

proptest! {
    /// A hash of a range falls into the range among another number; at both ends of that some hash of the range does.
    #[test]
    fn a_range_of_key_groups_is_found_again_among_another_number(
        from in 1_u16..=32_768, to in 1_u16..=32_768, seeds in any::<(u16, u16, u64)>()
    ) {
        let (one, other) = (seeds.0 % from, seeds.1 % from);
        let range = KeyGroupRange { start: one.min(other), end: one.max(other) + 1 };
        let found = rescaled(range, from, to);
        let (first, last) = (u64::from(range.start) << 32, u64::from(range.end) << 32);
        let (first, last) = (first.div_ceil(from.into()), last.div_ceil(from.into()) - 1);
        prop_assert!(range.contains(of_hash(first << 32, from)) && range.contains(of_hash(last << 32, from)));
        prop_assert_eq!((found.start, found.end), (of_hash(first << 32, to).0, of_hash(last << 32, to).0 + 1));
        let hash = (first + seeds.2 % (last - first + 1)) << 32 | seeds.2 >> 32;
        prop_assert!(range.contains(of_hash(hash, from)) && found.contains(of_hash(hash, to)));
    }

    /// The ranges of all subtasks cut the key groups without gap or overlap, as `owner` says.
    #[test]
    fn ranges_are_the_inverse_of_owner(max in 1_u16..=32_768, parallelism in 1_u32..300, seed in any::<u16>()) {
        let parallelism = parallelism.min(u32::from(max));
        let group = KeyGroup(seed % max);
        let index = owner(group, parallelism, max);
        prop_assert!(index.0 < parallelism);
        prop_assert!(KeyGroupRange::of_subtask(index, parallelism, max).contains(group));
        let total: usize =
            (0..parallelism).map(|i| KeyGroupRange::of_subtask(SubtaskIndex(i), parallelism, max).len()).sum();
        prop_assert_eq!(total, usize::from(max));
    }
}
