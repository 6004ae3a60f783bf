"""What all figures share: legible in print and on a phone, told apart without colour."""

from matplotlib.figure import Figure

BLUE, ORANGE, GREEN = "#0072B2", "#D55E00", "#009E73"  # Okabe & Ito 2008, safe for colour-blind readers
WIDTH = 4.6  # inches: on a phone about its natural size, so that the text stays readable


def tidied(figure: Figure) -> Figure:
    """A light grid, no box, and a legend where something has a name."""
    for axes in figure.axes:
        axes.grid(alpha=0.25)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(frameon=False, fontsize=8)
    return figure
