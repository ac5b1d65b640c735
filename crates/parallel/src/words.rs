//! Small agreements between ranks: a few numbers of 64 bits, carried bit by bit.

use bessemer_collectives::{CollectiveError, Communicator, Parts, Values};

/// Every rank's numbers, in the order of the ranks; all ranks give equally many.
pub(crate) fn gather(
    group: &mut dyn Communicator,
    name: &str,
    numbers: &[u64],
) -> Result<Vec<u64>, CollectiveError> {
    if group.size() == 1 {
        return Ok(numbers.to_vec());
    }
    let each = 2 * numbers.len();
    let parts = Parts::of((0..group.size()).map(|_| each));
    let mut words = vec![0.0f32; parts.len()];
    let mine = &mut words[parts.range(group.rank())];
    for (pair, number) in mine.chunks_exact_mut(2).zip(numbers) {
        pair[0] = f32::from_bits(*number as u32);
        pair[1] = f32::from_bits((*number >> 32) as u32);
    }
    group.all_gather(name, Values::F32(&mut words), &parts)?;
    let number = |pair: &[f32]| u64::from(pair[0].to_bits()) | u64::from(pair[1].to_bits()) << 32;
    Ok(words.chunks_exact(2).map(number).collect())
}

/// The sum over the ranks, added in their order.
pub(crate) fn sum(group: &mut dyn Communicator, name: &str, value: f64) -> Result<f64, CollectiveError> {
    if group.size() == 1 {
        return Ok(value);
    }
    Ok(gather(group, name, &[value.to_bits()])?.into_iter().map(f64::from_bits).sum())
}
