// BandMask's intervals against the predicate, pair by pair, over random bands.
#include "kernels/mask.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/seed.h"

namespace flashbob {
namespace {

// math.md: i + s - left <= j <= i + s + right, -1 leaves a side open.
bool Predicate(const BandMask& mask, int64_t i, int64_t j) {
  const bool after_left = mask.left == -1 || i + mask.shift - mask.left <= j;
  const bool before_right = mask.right == -1 || j <= i + mask.shift + mask.right;
  return after_left && before_right;
}

std::string Describe(const BandMask& mask) {
  return absl::StrCat(mask.query_len, "x", mask.key_len, " left ", mask.left, " right ", mask.right, " shift ",
                      mask.shift);
}

class MaskTest : public testing::Test {
 protected:
  template <typename Check>
  void ForRandomBands(Check check) {
    std::mt19937_64 generator(testing_seed::Seed());
    const auto draw = [&](int64_t low, int64_t high) {
      return std::uniform_int_distribution<int64_t>(low, high)(generator);
    };
    for (int trial = 0; trial < 2000; ++trial) {
      BandMask mask;
      mask.query_len = draw(0, 12);
      mask.key_len = draw(0, 12);
      mask.left = draw(0, 2) == 0 ? -1 : draw(0, 14);
      mask.right = draw(0, 2) == 0 ? -1 : draw(0, 14);
      mask.shift = draw(0, 1) == 0 ? 0 : mask.key_len - mask.query_len;
      SCOPED_TRACE(Describe(mask));
      check(mask);
      if (HasFatalFailure()) return;
    }
  }
};

TEST_F(MaskTest, VisibleIsThePredicate) {
  ForRandomBands([](const BandMask& mask) {
    for (int64_t i = 0; i < mask.query_len; ++i) {
      for (int64_t j = 0; j < mask.key_len; ++j) ASSERT_EQ(mask.Visible(i, j), Predicate(mask, i, j)) << i << "," << j;
    }
  });
}

TEST_F(MaskTest, KeysOfAQueryAreExactlyTheVisibleOnes) {
  ForRandomBands([](const BandMask& mask) {
    for (int64_t i = 0; i < mask.query_len; ++i) {
      const IndexRange keys = mask.KeysOf(i);
      ASSERT_GE(keys.begin, 0);
      ASSERT_LE(keys.end, mask.key_len);
      for (int64_t j = 0; j < mask.key_len; ++j) {
        ASSERT_EQ(j >= keys.begin && j < keys.end, Predicate(mask, i, j)) << i << "," << j;
      }
    }
  });
}

TEST_F(MaskTest, QueriesOfAKeyAreExactlyThoseThatSeeIt) {
  ForRandomBands([](const BandMask& mask) {
    for (int64_t j = 0; j < mask.key_len; ++j) {
      const IndexRange queries = mask.QueriesOf(j);
      ASSERT_GE(queries.begin, 0);
      ASSERT_LE(queries.end, mask.query_len);
      for (int64_t i = 0; i < mask.query_len; ++i) {
        ASSERT_EQ(i >= queries.begin && i < queries.end, Predicate(mask, i, j)) << i << "," << j;
      }
    }
  });
}

TEST_F(MaskTest, RangesHoldEveryPairOfTheirRowsAndColumns) {
  ForRandomBands([](const BandMask& mask) {
    for (int64_t i = 0; i < mask.query_len; ++i) {
      for (int64_t j = 0; j < mask.key_len; ++j) {
        if (!Predicate(mask, i, j)) continue;
        for (int64_t begin = 0; begin <= i; ++begin) {
          const IndexRange keys = mask.KeysOf(IndexRange{begin, i + 1});
          ASSERT_TRUE(keys.begin <= j && j < keys.end) << begin << ": " << i << "," << j;
        }
        for (int64_t begin = 0; begin <= j; ++begin) {
          const IndexRange queries = mask.QueriesOf(IndexRange{begin, j + 1});
          ASSERT_TRUE(queries.begin <= i && i < queries.end) << begin << ": " << i << "," << j;
        }
      }
    }
  });
}

TEST_F(MaskTest, CoverIsExactForEveryRectangle) {
  ForRandomBands([](const BandMask& mask) {
    for (int64_t top = 0; top < mask.query_len; top += 2) {
      for (int64_t bottom = top + 1; bottom <= mask.query_len; ++bottom) {
        for (int64_t left = 0; left < mask.key_len; left += 3) {
          for (int64_t right = left + 1; right <= mask.key_len; ++right) {
            int64_t visible = 0;
            for (int64_t i = top; i < bottom; ++i) {
              for (int64_t j = left; j < right; ++j) visible += Predicate(mask, i, j) ? 1 : 0;
            }
            const Coverage expected = visible == 0                                 ? Coverage::kNone
                                      : visible == (bottom - top) * (right - left) ? Coverage::kFull
                                                                                   : Coverage::kPartial;
            ASSERT_EQ(mask.Cover({top, bottom}, {left, right}), expected)
                << top << ".." << bottom << " x " << left << ".." << right;
          }
        }
      }
    }
  });
}

TEST_F(MaskTest, VisiblePairsAreCounted) {
  ForRandomBands([](const BandMask& mask) {
    int64_t visible = 0;
    for (int64_t i = 0; i < mask.query_len; ++i) {
      for (int64_t j = 0; j < mask.key_len; ++j) visible += Predicate(mask, i, j) ? 1 : 0;
    }
    ASSERT_EQ(mask.VisiblePairs(), static_cast<double>(visible));
  });
}

TEST_F(MaskTest, VisiblePairsOfAMillionQueriesAreExact) {
  constexpr int64_t kMillion = int64_t{1} << 20;
  const BandMask causal = {kMillion, kMillion, -1, 0, 0};
  EXPECT_EQ(causal.VisiblePairs(), static_cast<double>(kMillion * (kMillion + 1) / 2));
  const BandMask window = {kMillion, kMillion, 4095, 0, 0};
  EXPECT_EQ(window.VisiblePairs(), static_cast<double>(kMillion * 4096 - int64_t{4096} * 4095 / 2));
}

}  // namespace
}  // namespace flashbob
