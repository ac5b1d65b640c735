//! The list of all cases, and the macro that makes a test of each.

use crate::{
    Devices, Suite, attention, attention_blocks, attention_golden, attention_masks, backend, background,
    elementwise, embedding, experts, gates, gradients, linear, loss, norm, not_a_number, optimizer,
    quantised, sharding, tensor_shards,
};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Makes a `#[test]` of every case of the suite, in a module for each group of cases. The argument is a value that
/// implements [`Devices`], with an absolute path: `operator_suite!(crate::Cpu)`.
///
/// In the list, the operators in brackets are those that the case tests: it fails if the device leaves out their launches.
/// Cases without operators test errors and host copies, or compare results of the device with each other.
#[macro_export]
macro_rules! operator_suite {
    ($devices:expr) => {
        $crate::operator_suite! { @list @tests ($devices) }
    };
    (@tests ($devices:expr) $($module:ident { $($name:ident $([$($operator:ident)*])?,)* })*) => {
        $(
            mod $module {
                $(
                    #[test]
                    fn $name() {
                        $crate::run(concat!(stringify!($module), "::", stringify!($name)), &$devices);
                    }
                )*
            }
        )*
        mod exceptions {
            #[test]
            fn exceptions_name_cases_and_have_reasons() {
                $crate::check_exceptions(&$devices);
            }
        }
    };
    (@table () $($module:ident { $($name:ident $([$($operator:ident)*])?,)* })*) => {
        /// All cases.
        pub const CASES: &[Case] = &[$($(
            Case {
                name: concat!(stringify!($module), "::", stringify!($name)),
                operators: &[$($(stringify!($operator)),*)?],
                run: $module::$name,
            },
        )*)*];
    };
    (@list @$target:ident $argument:tt) => {
        $crate::operator_suite! { @$target $argument
            attention {
                forward_agrees_with_the_reference [attention],
                backward_agrees_with_the_reference [attention attention_backward],
                decoding_agrees_with_the_reference [attention_cached],
                decoding_of_slots_agrees_with_the_reference [attention_slots],
                places_outside_the_cache_are_refused,
                large_scores_do_not_overflow [attention],
                rotations_agree_with_the_reference_and_undo_each_other [rope],
            }
            attention_blocks {
                some_of_the_keys_agree_with_the_reference [attention attention_backward],
                merged_results_agree_with_the_reference [attention_merge],
                a_side_that_has_seen_nothing_changes_nothing [attention_merge],
                blocks_together_are_the_whole [attention attention_backward attention_merge add],
                a_hidden_block_gives_nothing [attention],
            }
            attention_golden {
                every_mask_gives_what_pytorch_gives [attention attention_backward],
            }
            attention_masks {
                masks_agree_with_the_reference [attention attention_backward],
                some_of_the_queries_agree_with_the_reference [attention attention_backward],
                queries_without_their_keys_are_refused,
                many_strips_of_keys_add_up_in_one_order [attention attention_backward],
                decoding_with_windows_and_biases_agrees_with_the_reference [attention_cached],
                packed_documents_are_as_if_alone [attention attention_backward],
                a_wide_window_is_no_window_bit_for_bit,
                wrong_documents_are_named,
            }
            backend {
                a_launch_that_needs_more_than_was_reserved_is_refused_by_figures,
                reduced_types_are_refused_where_there_is_no_kernel_and_converted_where_there_is,
                host_copies_by_several_threads_write_the_view_and_nothing_else,
                host_copies_follow_rows_and_refuse_wrong_counts,
                foreign_and_overflowing_views_are_refused,
                empty_views_are_no_work,
            }
            background {
                a_read_beside_launches_has_the_values_of_its_beginning,
            }
            elementwise {
                fill_copy_and_add_agree_with_the_reference [fill copy add],
                sums_of_gradients_are_rounded_to_their_type [add],
                scale_agrees_with_the_reference_also_in_place [scale],
                activations_agree_with_the_reference [activation activation_backward],
                gated_units_agree_with_the_reference_also_in_place [gated gated_backward],
                gated_rows_agree_with_the_reference_also_in_place [add_gated_rows add_gated_rows_backward],
                magnitudes_agree_with_the_reference_also_in_place [adapted_squares magnitudes magnitudes_backward],
                dropout_is_the_mask_by_element_number [dropout],
                dropout_keeps_the_mean_and_the_right_share [dropout],
                any_small_shape_agrees [gated dropout],
            }
            embedding {
                look_up_and_its_gradient_agree_with_the_reference [embedding embedding_backward],
                an_index_past_the_table_is_named_on_every_rung,
            }
            experts {
                routes_agree_with_the_reference [route],
                ties_go_to_the_lower_expert [route],
                gradients_of_routes_and_balance_losses_agree_with_the_reference
                    [route route_backward count_choices balance_loss],
                rows_lie_by_expert_then_token_then_choice [assign_rows],
                received_rows_are_grouped_by_device_and_expert [received_groups],
                shadows_are_chosen_and_their_rows_come_first [assign_rows choose_shadows],
                gradients_of_shadows_are_added_in_the_order_of_devices [add_shadow_gradients],
                rows_are_copied_and_summed_as_in_the_reference
                    [dispatch dispatch_backward combine_rows combine_rows_backward],
                grouped_products_agree_with_the_reference
                    [grouped_linear grouped_linear_backward_input grouped_linear_backward_weight],
                groups_have_the_bits_that_they_have_alone,
                some_groups_have_the_bits_that_they_have_among_all,
                experts_rows_and_offsets_past_the_end_are_named,
                a_layer_has_the_golden_values
                    [route route_backward count_choices balance_loss assign_rows dispatch dispatch_backward combine_rows
                    combine_rows_backward grouped_linear grouped_linear_backward_input grouped_linear_backward_weight],
            }
            gates {
                deepseeks_gate_has_the_golden_values [route balance_loss count_choices],
                capacities_have_the_golden_values [keep_choices assign_rows],
                the_topology_aware_gate_has_the_golden_values [keep_in_node],
                tokens_in_their_nodes_are_those_of_the_reference [keep_in_node],
                kept_choices_are_those_of_the_reference [keep_choices random_numbers dropout],
                jitter_keeps_the_mean [dropout],
                wrong_gates_and_capacities_are_refused,
            }
            gradients {
                experts [route route_backward balance_loss dispatch_backward combine_rows combine_rows_backward
                    grouped_linear grouped_linear_backward_input grouped_linear_backward_weight],
                linear [linear activation_backward linear_backward_input linear_backward_weight],
                gated_rows [add_gated_rows add_gated_rows_backward],
                magnitudes [adapted_squares magnitudes magnitudes_backward],
                activations_and_gated_units [activation activation_backward gated gated_backward],
                norms [norm norm_backward],
                norms_of_sums [row_sums norm_of_sums norm_gradient_sums norm_backward_of_sums],
                attention_with_grouped_heads_masks_and_dropout [attention attention_backward],
                merged_attention [attention attention_merge attention_backward],
                rotations,
                loss [linear_cross_entropy],
                distillation [linear_cross_entropy],
                distillation_has_the_golden_values [linear_cross_entropy],
                z_loss_has_the_gradients_of_pytorch_and_leaves_the_reported_loss_alone [linear_cross_entropy],
                embedding [embedding embedding_backward],
            }
            linear {
                forward_agrees_with_the_reference [linear],
                rows_of_a_rowwise_product_do_not_depend_on_their_number [linear],
                input_gradient_agrees_with_the_reference [linear_backward_input],
                weight_gradient_agrees_with_the_reference [linear_backward_weight],
                products_with_oneself_have_the_bits_of_products_with_a_copy [linear linear_backward_weight],
                weights_of_fewer_bits_are_as_good_as_their_values_in_f32,
            }
            loss {
                loss_and_gradients_agree_with_the_reference [linear_cross_entropy],
                distillation_agrees_with_the_reference [linear_cross_entropy],
                a_teacher_of_factor_0_leaves_the_bits_of_the_loss [linear_cross_entropy],
                chunks_of_rows_give_what_the_rows_give_alone,
                a_target_past_the_vocabulary_is_named,
                large_logits_do_not_overflow [linear_cross_entropy],
            }
            norm {
                forward_and_backward_agree_with_the_reference [norm norm_backward],
                a_large_mean_does_not_spoil_the_variance [norm],
            }
            not_a_number {
                products_spoil_exactly_the_rows_that_read_it [linear],
                attention_spoils_the_queries_that_see_it [attention],
                losses_norms_and_sums_of_squares_keep_it [linear_cross_entropy sum_squares norm],
            }
            optimizer {
                the_update_has_the_same_bits_on_every_rung [adamw],
                the_first_step_moves_by_the_learning_rate [adamw],
                sums_of_squares_agree_with_the_reference [sum_squares],
                descent_and_lion_have_the_same_bits_on_every_rung [sgd lion],
                sums_of_matrices_products_and_norms_agree_with_the_reference [combine divide_by_norm dot],
                adafactor_agrees_with_the_reference
                    [factored_moments factored_direction moment_direction adafactor_update],
                an_apply_flag_of_zero_leaves_every_bit_as_it_was
                    [adamw sgd lion factored_moments factored_direction moment_direction adafactor_update combine],
                cholesky_factors_and_inverses_agree_with_the_reference_and_multiply_back
                    [cholesky triangular_inverse],
                a_matrix_that_is_not_positive_definite_leaves_nan_on_the_diagonal [cholesky],
            }
            quantised {
                activations_and_gradients_have_the_same_codes_on_every_rung [quantise dequantise],
                values_come_back_within_half_a_unit_of_their_block [quantise dequantise],
                what_is_not_finite_spoils_its_block_and_no_other [quantise dequantise],
                blocks_that_do_not_divide_a_row_or_are_too_long_are_refused,
                the_update_in_8_bits_has_the_same_bits_on_every_rung [adamw_int8],
                the_update_in_8_bits_is_that_in_f32_whose_moments_are_rounded [adamw_int8 adamw],
                an_update_in_8_bits_that_does_not_apply_changes_nothing,
                moments_with_gaps_or_other_scales_are_refused,
            }
            sharding {
                every_operator_has_a_rule_that_fits_its_operands,
                ranks_that_share_a_loop_compute_what_one_computes,
                partial_operands_that_are_declared_linear_give_partial_results,
                wrong_rules_change_the_numbers,
                a_wrong_reduction_changes_the_numbers,
                partial_operands_that_are_not_linear_change_the_numbers,
            }
            tensor_shards {
                sums_losses_and_gradients_agree_with_the_reference [logit_sums linear_cross_entropy_shard],
                combined_sums_agree_with_the_reference [combine_log_sums],
                combined_sums_are_those_of_all_terms_and_have_their_derivatives [combine_log_sums],
                combined_sums_refuse_an_odd_number_of_rows,
                portions_of_the_vocabulary_together_have_the_loss_and_the_gradients_of_the_whole
                    [linear_cross_entropy logit_sums combine_log_sums linear_cross_entropy_shard],
                large_logits_do_not_overflow [logit_sums],
                portions_of_a_table_add_up_to_the_whole [embedding],
                what_is_outside_the_whole_is_named,
                a_part_of_the_heads_drops_and_lowers_what_the_whole_layer_does [attention attention_backward],
            }
        }
    };
}

/// A case of the suite.
#[derive(Clone, Copy)]
pub struct Case {
    /// Module and name, which are those of its test.
    pub name: &'static str,
    /// Operators that the case tests, by [`bessemer_tensor::op::Op::name`].
    pub operators: &'static [&'static str],
    pub(crate) run: fn(&Suite<'_>),
}

operator_suite! { @list @table () }

/// Runs a case on a device. A case that is an exception of the device must fail.
///
/// # Panics
/// If a comparison fails, if there is no such case, or if an exception passes.
pub fn run(name: &str, devices: &dyn Devices) {
    let case = CASES.iter().find(|c| c.name == name).expect("the suite has a case of this name");
    let suite = Suite::new(devices);
    if let Some(exception) = devices.exceptions().iter().find(|e| e.case == name) {
        let outcome = catch_unwind(AssertUnwindSafe(|| (case.run)(&suite)));
        assert!(outcome.is_err(), "{name} passes: remove its exception, {}", exception.reason);
        return;
    }
    (case.run)(&suite);
    let launched = suite.launched();
    for operator in case.operators {
        assert!(
            launched.contains(operator),
            "{name} is listed as a case of {operator}, and does not launch it"
        );
    }
}

/// Errors in the list of exceptions of a device.
///
/// # Panics
/// If an exception names no case, a case twice, or has no reason.
pub fn check_exceptions(devices: &dyn Devices) {
    let exceptions = devices.exceptions();
    for (i, exception) in exceptions.iter().enumerate() {
        let name = exception.case;
        assert!(CASES.iter().any(|c| c.name == name), "{name}: no case of the suite");
        assert!(exceptions[..i].iter().all(|e| e.case != name), "{name}: two exceptions");
        assert!(!exception.reason.trim().is_empty(), "{name}: no reason");
    }
}
