//! Optimizers, learning-rate schedules, clipping.
